"""A checkpoint taken up under other optimizer settings, against torch.optim.AdamW whose settings change there."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.processes import RankPool
from tests.parity.compare import PARAMETER_TOLERANCE, largest_difference
from tests.parity.megatron import ranks
from tests.parity.strategies import runs
from tests.parity.strategies.reference import LEARNING_RATE, BentLoss, Change, Trace, rows, train_reference
from tests.parity.strategies.runs import Run

Pools = Callable[[int], RankPool]

BEFORE: dict[str, Any] = {"lr_scheduler_type": "linear"}
LATER: dict[str, Any] = {
    "learning_rate": LEARNING_RATE / 4,
    "lr_scheduler_type": "cosine",
    "weight_decay": 0.5,
    "adam_beta1": 0.7,
    "adam_beta2": 0.8,
    "adam_epsilon": 1e-4,
}
MAX_NORM = 0.05
# Linear over 10 updates, then 3/5 and 4/5 of a warm-up to the new peak.
RATES = [LEARNING_RATE, LEARNING_RATE * 0.9, LEARNING_RATE / 4 * 0.6, LEARNING_RATE / 4 * 0.8]


@pytest.fixture(scope="module")
def reference(tiny_tied_model_dir: Path) -> Trace:
    change = Change(2, (0.7, 0.8), 1e-4, 0.5, MAX_NORM)
    return train_reference(tiny_tied_model_dir, rows(), BentLoss(), RATES, change=change)


def assert_same_updates(got: Trace, want: Trace) -> None:
    for got_parameters, want_parameters in zip(got.parameters, want.parameters[2:], strict=True):
        assert largest_difference(got_parameters, want_parameters) < PARAMETER_TOLERANCE
    for got_metrics, want_metrics in zip(got.metrics, want.metrics[2:], strict=True):
        assert got_metrics == pytest.approx(want_metrics, rel=1e-4)


@pytest.mark.gate("0-1", "3-2")
@pytest.mark.parametrize("stage, world_size", [(0, 1), (1, 2), (2, 1), (3, 2)])
def test_deepspeed_goes_on_under_the_new_settings(
    stage: int, world_size: int, rank_pool: Pools, tiny_tied_model_dir: Path, tmp_path: Path, reference: Trace
) -> None:
    """Rate, schedule, warm-up, decay (which was off), betas, epsilon and clip all change after two updates."""
    run = Run(tiny_tied_model_dir, stage, updates=2, training=BEFORE, total_updates=10)
    later = replace(run, training=LATER, total_updates=20, warmup_updates=4, max_norm=MAX_NORM)
    rank_pool(world_size).run(runs.save_after, run, tmp_path)
    assert_same_updates(rank_pool(world_size).run(runs.go_on, later, tmp_path)[0], reference)


@pytest.mark.gate("2")
@pytest.mark.parametrize("world_size", [1, 2])
def test_fsdp2_goes_on_under_the_new_settings(
    world_size: int, rank_pool: Pools, tiny_tied_model_dir: Path, tmp_path: Path, reference: Trace
) -> None:
    run = Run(tiny_tied_model_dir, fsdp2={}, updates=2, training=BEFORE, total_updates=10)
    later = replace(run, training=LATER, total_updates=20, warmup_updates=4, max_norm=MAX_NORM)
    rank_pool(world_size).run(runs.save_after, run, tmp_path)
    assert_same_updates(rank_pool(world_size).run(runs.go_on, later, tmp_path)[0], reference)


@pytest.mark.gate("shared")
@pytest.mark.parametrize("settings", [{}, {"use_distributed_optimizer": True}], ids=["plain", "shared"])
def test_megatron_goes_on_under_the_new_settings(
    settings: dict[str, Any], rank_pool: Pools, tiny_tied_model_dir: Path, tmp_path: Path, reference: Trace
) -> None:
    run = ranks.Run(tiny_tied_model_dir, settings, training=BEFORE, total_updates=10)
    later = replace(run, training=LATER, total_updates=20, warmup_updates=4, max_norm=MAX_NORM)
    rank_pool(2).run(ranks.save_and_go_on, run, tmp_path)
    _, weights, norm = rank_pool(2).run(ranks.load_and_go_on, later, tmp_path)[0]
    assert largest_difference(weights, reference.parameters[2]) < PARAMETER_TOLERANCE
    assert norm == pytest.approx(reference.metrics[2]["grad_norm"], rel=1e-4)


@pytest.mark.gate("1-2")
@pytest.mark.parametrize("stage, world_size", [(0, 1), (1, 2)])
def test_deepspeed_in_bf16_takes_the_new_settings(
    stage: int, world_size: int, rank_pool: Pools, tiny_tied_model_dir: Path, tmp_path: Path
) -> None:
    """There fp32 master weights have an optimizer of their own, which clips."""
    run = Run(tiny_tied_model_dir, stage, updates=1, model={"dtype": "bf16"}, max_norm=1.0)
    later = replace(run, training=LATER, max_norm=MAX_NORM, total_updates=20, warmup_updates=4)
    rank_pool(world_size).run(runs.save_after, run, tmp_path)
    matrices, others, clip = rank_pool(world_size).run(runs.settings_after_loading, later, tmp_path)[0]
    assert matrices == [pytest.approx(LEARNING_RATE / 10), LEARNING_RATE / 4, 0.5, (0.7, 0.8), 1e-4]
    assert others == [pytest.approx(LEARNING_RATE / 10), LEARNING_RATE / 4, 0.0, (0.7, 0.8), 1e-4]
    assert clip == MAX_NORM
