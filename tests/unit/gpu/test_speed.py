"""What the checks of speed say of figures that are worse than those that a GPU gave."""

import time
from typing import Any

import pytest

from tests.gpu.__main__ import FOLDER, REPORTS
from tests.gpu.checks import speed
from tests.gpu.checks.speed import Sizes
from tests.gpu.place import SHAPE_OF_A_REHEARSAL
from tests.gpu.report import stored_reports
from tests.gpu.table import CHECKS

_LESS = ("mfu", "to_host_share", "to_device_share", "to_bare")  # what is worse where it is less


@pytest.mark.parametrize("figure", [*_LESS, "time_to_small_tiles", "time_compiled", "held_to_planned", "gap_to_moved"])
def test_what_a_gpu_gave_and_is_worse_fails(figure: str):
    """By a fifth of what a report has, and by twice for what is far below its bound as a rule (a time by that of worse
    code, log-probs of bf16)."""
    checks = {check.name: check for check in CHECKS}
    factor = 0.8 if figure in _LESS else 1.2 if figure in ("held_to_planned", "time_compiled") else 2
    for report in stored_reports(FOLDER / REPORTS):
        for outcome in report.outcomes:
            limit = checks[outcome.name].limits.get(figure)
            if figure not in outcome.figures or limit is None or outcome.figures[figure] < 1e-3:
                continue
            value = outcome.figures[figure]
            assert limit.holds(value), f"{outcome.name}: {value}"
            assert not limit.holds(factor * value), f"{outcome.name}: {factor * value} passes, {limit}"


def test_operations_of_an_update_are_those_of_its_matrices_and_pairs():
    """Two rows of 4 computed tokens, 10 pairs each. A layer's matrices: q and o 128 x 128, k and v 128 x 64, three of
    the MLP 128 x 384; the head 128 x 1024. Attention: 4 x 128 a pair and layer. Three passes."""
    sizes = Sizes(1, 2, 5)
    assert (sizes.tokens, sizes.pairs) == (8, 20)
    shape: dict[str, Any] = {"model_type": "qwen2", "tie_word_embeddings": True, **SHAPE_OF_A_REHEARSAL}
    weights = 2 * (2 * 128 * 128 + 2 * 128 * 64 + 3 * 128 * 384) + 128 * 1024
    assert speed.update_flops(shape, sizes) == 3 * (2 * weights * 8 + 2 * 4 * 128 * 20)


def test_seconds_are_the_median_of_updates_after_the_first_two(monkeypatch: pytest.MonkeyPatch):
    lengths, clock = iter([100.0, 100.0, 1.0, 2.0, 3.0, 50.0]), [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])

    def update() -> float:
        clock[0] += next(lengths)
        return clock[0]

    timed = speed._timed(update)
    assert (timed.seconds, timed.grad_norm) == (2.5, 100.0)
