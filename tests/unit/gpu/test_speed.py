"""What the checks of speed say of code that is broken or too slow. On a CPU, where figures of time are made up."""

import time
from pathlib import Path
from typing import Any

import pytest
import torch

from roll.distributed.strategy import host_copies
from roll.models import head_scores
from tests.gpu.check import judge
from tests.gpu.checks import speed
from tests.gpu.checks.speed import Sizes
from tests.gpu.place import SHAPE_OF_A_REHEARSAL, Place
from tests.gpu.table import CHECKS

UPDATE = {"mfu": 0.4, "time_to_plain": 1.0, "peak_to_planned": 1.0, "grad_norm_to_plain": 1.0}
FIGURES: dict[str, dict[str, float]] = {
    "mfu-0.5b": UPDATE,
    "mfu-0.5b-selective-compiled": UPDATE,
    "head-tiles": {"log_prob_gap_max": 0.01, "gradient_gap": 0.003, "time_to_small_tiles": 0.5, "time_compiled": 0.7},
    "weight-copies": {"same_fraction": 1.0, "to_host_share": 0.9, "to_device_share": 0.9},
}


def wrong(name: str, **changed: float) -> list[str]:
    """Names of the figures that the suite would complain of on a GPU."""
    check = next(check for check in CHECKS if check.name == name)
    return [text.split()[0] for text in judge(check, FIGURES[name] | changed, "cuda")]


def place(directory: Path) -> Place:
    return Place("cpu", ("0",), directory)


@pytest.mark.parametrize(
    ("name", "figure", "value"),
    [
        ("mfu-0.5b", "mfu", 0.2),
        ("mfu-0.5b-selective-compiled", "mfu", 0.3),
        ("mfu-0.5b", "time_to_plain", 1.4),
        ("mfu-0.5b", "peak_to_planned", 1.2),
        ("mfu-0.5b", "peak_to_planned", 0.8),
        ("mfu-0.5b", "grad_norm_to_plain", 0.5),
        ("head-tiles", "time_to_small_tiles", 1.1),
        ("head-tiles", "time_compiled", 1.1),
        ("weight-copies", "to_host_share", 0.2),
        ("weight-copies", "to_device_share", 0.2),
    ],
)
def test_what_is_slow_or_large_fails(name: str, figure: str, value: float):
    assert wrong(name) == []
    assert wrong(name, **{figure: value}) == [figure]


def test_operations_of_an_update_are_those_of_its_matrices_and_pairs():
    """Two rows of 4 computed tokens, 10 pairs each. A layer's matrices: q and o 128 x 128, k and v 128 x 64, three of
    the MLP 128 x 384; the head 128 x 1024. Attention: 4 x 128 a pair and layer. Three passes."""
    sizes = Sizes(1, 2, 5)
    assert (sizes.tokens, sizes.pairs) == (8, 20)
    shape: dict[str, Any] = {"model_type": "qwen2", "tie_word_embeddings": True, **SHAPE_OF_A_REHEARSAL}
    weights = 2 * (2 * 128 * 128 + 2 * 128 * 64 + 3 * 128 * 384) + 128 * 1024
    assert speed.update_flops(shape, sizes) == 3 * (2 * weights * 8 + 2 * 4 * 128 * 20)


def test_seconds_are_the_median_of_updates_after_the_first_two(monkeypatch: pytest.MonkeyPatch):
    lengths, clock = iter([100.0, 100.0, 1.0, 2.0, 3.0, 50.0, 100.0]), [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])

    def update() -> float:
        clock[0] += next(lengths)
        return clock[0]

    timed = speed._timed(update, is_profiled=True)
    assert (timed.seconds, timed.grad_norm) == (2.5, 100.0)


def test_a_wrong_gradient_of_the_head_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    good = speed.head_tiles(place(tmp_path))
    assert wrong("head-tiles", gradient_gap=good["gradient_gap"]) == []
    product = head_scores._wide_product
    monkeypatch.setattr(head_scores, "_wide_product", lambda *given: product(*given) * 1.05)
    bad = speed.head_tiles(place(tmp_path))
    assert wrong("head-tiles", gradient_gap=bad["gradient_gap"]) == ["gradient_gap"]


def test_weights_that_do_not_come_back_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    assert speed.weight_copies(place(tmp_path))["same_fraction"] == 1
    back = host_copies.HostCopies.bring_back

    def loses_the_last(copies: host_copies.HostCopies, tensors: list[torch.Tensor]) -> None:
        back(copies, tensors)
        tensors[-1].zero_()

    monkeypatch.setattr(host_copies.HostCopies, "bring_back", loses_the_last)
    found = speed.weight_copies(place(tmp_path))
    assert wrong("weight-copies", same_fraction=found["same_fraction"]) == ["same_fraction"]
