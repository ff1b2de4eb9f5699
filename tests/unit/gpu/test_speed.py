"""What the checks of speed say of figures of code that is too slow or too large. On a CPU, where figures are made up,
and those that a GPU gave."""

import time
from pathlib import Path
from typing import Any

import pytest

from tests.gpu.__main__ import FOLDER, REPORTS
from tests.gpu.check import judge
from tests.gpu.checks import speed
from tests.gpu.checks.speed import Sizes
from tests.gpu.place import SHAPE_OF_A_REHEARSAL, Place
from tests.gpu.report import stored_reports
from tests.gpu.table import CHECKS
from tests.helpers.cases import cases

UPDATE = {"mfu": 0.4, "time_to_plain": 1.0, "peak_to_planned": 1.0, "grad_norm_to_plain": 1.0, "moved": 6e-6}
FIGURES: dict[str, dict[str, float]] = {
    "mfu-0.5b": UPDATE,
    "mfu-0.5b-selective-compiled": UPDATE | {"time_to_plain": 0.8},
    "head-tiles": {"log_prob_gap_max": 0.01, "gradient_gap": 0.003, "time_to_small_tiles": 0.25, "time_compiled": 0.7},
    "sglang-hash": {
        "equal_fraction": 1.0,
        "time_fraction": 0.1,
        "repeated_fraction": 1.0,
        "top_p_repeated_fraction": 1.0,
        "likeliest_fraction": 0.0,
    },
    "engine-sglang-tp1": {
        "log_prob_gap_mean": 0.008,
        "log_prob_gap_max": 0.02,
        "log_prob_gap_after_sleep": 0.008,
        "same_after_sleep_fraction": 1.0,
        "left_asleep_fraction": 0.02,
        "to_bare": 0.99,
    },
    "weight-copies": {"same_fraction": 1.0, "to_host_share": 0.9, "to_device_share": 0.9},
}


def wrong(name: str, **changed: float) -> list[str]:
    """Names of the figures that the suite would complain of on a GPU."""
    check = next(check for check in CHECKS if check.name == name)
    return [text.split()[0] for text in judge(check, FIGURES[name] | changed, "cuda")]


def place(directory: Path) -> Place:
    return Place("cpu", ("0",), directory)


@cases("name, figure, value")
def test_what_is_slow_or_large_fails(name: str, figure: str, value: float):
    assert wrong(name) == []
    assert wrong(name, **{figure: value}) == [figure]


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
