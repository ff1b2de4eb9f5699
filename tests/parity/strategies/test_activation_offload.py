"""enable_activation_offload against the same run without it: not one bit of a gradient or a weight differs."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from roll.models import execution as activation_offload
from roll.models.execution import ActivationOffload
from tests.helpers.processes import RankPool
from tests.parity.compare import largest_difference
from tests.parity.strategies import runs
from tests.parity.strategies.reference import Trace
from tests.parity.strategies.runs import Run

OFFLOADED = {"enable_activation_offload": True}
RECOMPUTED = {"disable_gradient_checkpointing": False}


@contextmanager
def counted() -> Iterator[list[int]]:
    """Elements of each tensor that was moved to host memory; the tiny models have few."""
    moved: list[int] = []
    pack, least = ActivationOffload._pack, activation_offload.LEAST_ELEMENTS

    def count(self: ActivationOffload, tensor: Any) -> Any:
        packed = pack(self, tensor)
        if isinstance(packed, activation_offload._OnHost):
            moved.append(tensor.numel())
        return packed

    ActivationOffload._pack, activation_offload.LEAST_ELEMENTS = count, 64
    yield moved
    ActivationOffload._pack, activation_offload.LEAST_ELEMENTS = pack, least


def train_and_count(run: Run) -> tuple[Trace, list[int]]:
    with counted() as moved:
        return runs.train(run), moved


@pytest.mark.gate("fsdp2-packed-recomputed", "zero-3-kept")
@pytest.mark.parametrize("model", [RECOMPUTED, {}], ids=["recomputed", "kept"])
@pytest.mark.parametrize(
    ("settings", "more"),
    [({}, {}), ({"reshard_after_forward": False}, {"packs": True}), (None, {"stage": 2}), (None, {"stage": 3})],
    ids=["fsdp2", "fsdp2-packed", "zero-2", "zero-3"],
)
def test_two_updates_are_the_same_to_the_bit(
    settings: dict[str, Any] | None,
    more: dict[str, Any],
    model: dict[str, Any],
    rank_pool: Callable[[int], RankPool],
    tiny_tied_model_dir: Path,
) -> None:
    """Two ranks in micro batches of several sizes; the inputs of both layers' blocks, or all that they keep, are
    moved."""
    run = Run(tiny_tied_model_dir, fsdp2=settings, split=(3, 1), updates=2, model=model, **more)
    want, moved = rank_pool(2).run(train_and_count, run)[0]
    assert not moved
    got, moved = rank_pool(2).run(train_and_count, replace(run, model=model | OFFLOADED))[0]
    assert len(moved) >= 2 * 2 * 2 * (1 if model else 5)  # micro batches x updates x layers
    assert got.metrics == want.metrics
    assert largest_difference(got.gradients, want.gradients) == 0
    for ours, theirs in zip(got.parameters, want.parameters, strict=True):
        assert largest_difference(ours, theirs) == 0
