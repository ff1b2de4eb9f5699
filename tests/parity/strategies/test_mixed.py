"""Updates with an expert's rows against Hugging Face + autograd in one process, on the same rows of the policy and of
the expert. They go through the worker, which counts both kinds over all ranks.

The gradient is told from the weights that AdamW's first update leaves, so that it is the one that the engine's
optimizer saw. Not covered: bf16, and more updates than one, which are those of any loss (test_trainers.py and
others).
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from roll.distributed.executor.blueprint import BatchLimits
from tests.contract.test_train_strategies import DEEPSPEED, FSDP2, MEGATRON
from tests.contract.train_strategy import Case
from tests.helpers.processes import RankPool
from tests.parity.strategies import mixed
from tests.parity.strategies.test_pairs import assert_same

Pools = Callable[[int], RankPool]

TWO_ROWS = BatchLimits(2)
BY_TOKENS = BatchLimits(1, max_tokens=24)
PACKS = BatchLimits(1, max_tokens=30, packs=True)
CASES = [
    (Case("deepspeed_train", DEEPSPEED, 1, {"zero_optimization": {"stage": 0}}), TWO_ROWS),
    (Case("fsdp2_train", FSDP2, 2), BY_TOKENS),
    (Case("megatron_train", MEGATRON, 2, {"use_distributed_optimizer": True}), TWO_ROWS),
    (Case("deepspeed_train", DEEPSPEED, 2, {"zero_optimization": {"stage": 2}}), BY_TOKENS),
    (Case("fsdp2_train", FSDP2, 2, packs=True), PACKS),
    (Case("megatron_train", MEGATRON, 1), BY_TOKENS),
    (Case("megatron_train", MEGATRON, 2, {"tensor_model_parallel_size": 2}), TWO_ROWS),
    (Case("megatron_train", MEGATRON, 2, {"pipeline_model_parallel_size": 2}), TWO_ROWS),
]


@pytest.mark.gate("fsdp2_train-x2")
@pytest.mark.parametrize(
    ("case", "limits"),
    [pytest.param(*case, marks=() if place < 3 else pytest.mark.slow) for place, case in enumerate(CASES)],
    ids=[str(case) for case, _ in CASES],
)
def test_the_gradient_of_a_mix_is_hugging_faces_however_rows_are_spread(
    case: Case, limits: BatchLimits, rank_pool: Pools, tiny_model_dir: Path
) -> None:
    want, norm, loss = mixed.reference(tiny_model_dir)
    total = count = 0.0
    for gradients, rank_norm, told in rank_pool(case.world_size).run(mixed.update, case, tiny_model_dir, limits):
        assert rank_norm == pytest.approx(norm, rel=1e-4)
        total, count = total + told["expert_loss"][0], count + told["expert_loss"][1]
        if gradients:  # ranks that export nothing have none
            assert_same(gradients, want)
    assert total / count == pytest.approx(loss, rel=1e-5)
