"""Updates on pairs against Hugging Face + autograd in one process, on the same eight pairs.

The gradient is told from the weights that AdamW's first update leaves, so that it is the one that the engine's
optimizer saw. Not covered: bf16, and more updates than one, which are those of any loss (test_trainers.py and
others).
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from roll.distributed.executor.blueprint import BatchLimits
from tests.contract.test_train_strategies import DEEPSPEED, FSDP2, MEGATRON, ZERO3
from tests.contract.train_strategy import Case
from tests.helpers.processes import RankPool
from tests.parity.strategies import pairs
from tests.parity.strategies.pairs import Gradients

Pools = Callable[[int], RankPool]

TWO_PAIRS = BatchLimits(4, together=2)
BY_TOKENS = BatchLimits(1, max_tokens=40, together=2)
PACKS = BatchLimits(1, max_tokens=45, packs=True, together=2)
CASES = [
    (Case("deepspeed_train", DEEPSPEED, 1, {"zero_optimization": {"stage": 0}}), TWO_PAIRS),
    (Case("fsdp2_train", FSDP2, 2), BY_TOKENS),
    (Case("megatron_train", MEGATRON, 2, {"use_distributed_optimizer": True}), TWO_PAIRS),
    (Case("deepspeed_train", DEEPSPEED, 2, {"zero_optimization": {"stage": 2}}), BY_TOKENS),
    (Case("fsdp2_train", FSDP2, 1), TWO_PAIRS),
    (Case("fsdp2_train", FSDP2, 2, packs=True), PACKS),
    (Case("megatron_train", MEGATRON, 1), BY_TOKENS),
    (Case("megatron_train", MEGATRON, 2, {"tensor_model_parallel_size": 2}), TWO_PAIRS),
    (Case("megatron_train", MEGATRON, 2, {"pipeline_model_parallel_size": 2}), TWO_PAIRS),
]
TREES = [
    (Case("deepspeed_train", DEEPSPEED, 2, {"zero_optimization": ZERO3}, shares=True), TWO_PAIRS),
    (Case("fsdp2_train", FSDP2, 2, shares=True), BatchLimits(1, max_tokens=220, together=2)),
]


@pytest.mark.gate("deepspeed_train0-x1")
@pytest.mark.parametrize(
    ("case", "limits"),
    [*(pytest.param(*case, marks=() if place < 3 else pytest.mark.slow) for place, case in enumerate(CASES)), *TREES],
    ids=[str(case) for case, _ in [*CASES, *TREES]],
)
def test_the_gradient_of_pairs_is_hugging_faces_however_they_are_spread(
    case: Case, limits: BatchLimits, rank_pool: Pools, tiny_model_dir: Path
) -> None:
    want, norm, loss = pairs.dpo_reference(tiny_model_dir, case.shares)
    for gradients, rank_norm, rank_loss in rank_pool(case.world_size).run(
        pairs.dpo_update, case, tiny_model_dir, limits
    ):
        assert rank_loss == pytest.approx(loss, rel=1e-5)
        assert rank_norm == pytest.approx(norm, rel=1e-4)
        if gradients:  # ranks that export nothing have none
            assert_same(gradients, want)


@pytest.mark.gate("deepspeed_train0-x1-")
@pytest.mark.parametrize(
    ("case", "limits"),
    [pytest.param(*case, marks=() if i in (0, 8, 10) else pytest.mark.slow) for i, case in enumerate([*CASES, *TREES])],
    ids=lambda given: str(given) if isinstance(given, Case) else "",
)
def test_the_gradient_of_a_reward_model_is_hugging_faces(
    case: Case, limits: BatchLimits, rank_pool: Pools, tiny_model_dir: Path, tmp_path: Path
) -> None:
    pairs.save_reward_model(tiny_model_dir, tmp_path)
    want, norm, loss = pairs.rm_reference(tmp_path, case.shares)
    for gradients, rank_norm, rank_loss in rank_pool(case.world_size).run(pairs.rm_update, case, tmp_path, limits):
        assert rank_loss == pytest.approx(loss, rel=1e-5)
        assert rank_norm == pytest.approx(norm, rel=1e-4)
        if gradients:
            assert_same(gradients, want)


def assert_same(got: Gradients, want: Gradients) -> None:
    """A weight of 1 that moves by 1e-3 is told to 6e-8."""
    assert got.keys() == want.keys()
    for name, gradient in want.items():
        np.testing.assert_allclose(got[name], gradient, rtol=1e-3, atol=2e-6, err_msg=name)
