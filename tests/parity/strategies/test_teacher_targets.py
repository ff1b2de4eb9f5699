"""What teachers tell, and updates of students that learn from it, against Hugging Face + autograd in one process, on
the same eight rows.

The gradient is told from the weights that AdamW's first update leaves (`pairs.py`). Both heads have rows beyond the
vocabulary that they share. Not covered: the divergences themselves (algorithms/test_distillation_against_loops.py),
bf16.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from roll.algorithms.distillation import TOKEN_MEAN, Distillation, Divergence
from roll.algorithms.objectives import PolicyGradient
from roll.algorithms.policy_loss import PolicyLoss
from roll.distributed.executor.blueprint import BatchLimits
from tests.contract.test_train_strategies import DEEPSPEED, FSDP2, MEGATRON, ZERO3
from tests.contract.train_strategy import Case
from tests.helpers.processes import RankError, RankPool
from tests.parity.strategies import teacher_targets as lessons
from tests.parity.strategies.test_pairs import assert_same
from tests.parity.strategies.test_scoring import SCORERS, SHARED, Scorer

Pools = Callable[[int], RankPool]

TWO_ROWS = BatchLimits(2)
PACKS = BatchLimits(1, max_tokens=30, packs=True)
CASES = [
    (Case("deepspeed_train", DEEPSPEED, 1, {"zero_optimization": {"stage": 0}}), TWO_ROWS, (0, 5)),
    (Case("fsdp2_train", FSDP2, 2), TWO_ROWS, (0, 5)),
    (Case("megatron_train", MEGATRON, 2, {"tensor_model_parallel_size": 2}), TWO_ROWS, (5,)),
    (Case("deepspeed_train", DEEPSPEED, 2, {"zero_optimization": ZERO3}, packs=True), PACKS, (0, 5)),
    (Case("fsdp2_train", FSDP2, 2, packs=True), PACKS, (0,)),
    (Case("megatron_train", MEGATRON, 2, {"pipeline_model_parallel_size": 2}), TWO_ROWS, (0, 5)),
    (Case("megatron_train", MEGATRON, 2, {"context_parallel_size": 2}), TWO_ROWS, (0, 5)),
    (Case("megatron_train", MEGATRON, 1), TWO_ROWS, (0,)),
]
TREES = [
    (Case("deepspeed_train", DEEPSPEED, 2, {"zero_optimization": ZERO3}, shares=True), BatchLimits(4), (0, 5)),
    (Case("fsdp2_train", FSDP2, 1, shares=True), BatchLimits(3), (0, 5)),
]
MEGATRON_INFER = "roll.distributed.strategy.megatron.score:MegatronScoreStrategy"
TEACHERS = [
    *(SCORERS[i] for i in (0, 3, 5)),
    replace(SCORERS[5], packs=True),
    *(replace(SCORERS[i], shares=True) for i in (0, 3, 5)),
    Scorer("megatron_infer", MEGATRON_INFER, 2, {"tensor_model_parallel_size": 2}),
    *(
        pytest.param(Scorer("megatron_infer", MEGATRON_INFER, 2, {key: 2}), marks=pytest.mark.slow)
        for key in ("pipeline_model_parallel_size", "context_parallel_size")
    ),
    pytest.param(SHARED[0], marks=pytest.mark.slow),
]


@pytest.fixture(scope="module")
def teacher_dir(make_tiny_model_dir: Callable[..., Path]) -> Path:
    """Of another width than the student."""
    return make_tiny_model_dir(tie_word_embeddings=False, seed=3, hidden_size=256, num_heads=4)


@pytest.mark.gate("fsdp2_train-x2-")
@pytest.mark.parametrize(
    ("case", "limits", "ways"),
    [*(pytest.param(*case, marks=() if place < 3 else pytest.mark.slow) for place, case in enumerate(CASES)), *TREES],
    ids=[f"{case}-{'-'.join(case.strategy_config)}" for case, _, _ in [*CASES, *TREES]],
)
def test_the_gradient_of_a_student_is_hugging_faces(
    case: Case, limits: BatchLimits, ways: tuple[int, ...], rank_pool: Pools, tiny_model_dir: Path, teacher_dir: Path
) -> None:
    for top_k in ways:
        given = lessons.told(top_k)
        lesson, head = lessons.lesson_by_hugging_face(teacher_dir, given, case.shares)
        want, norm, loss = lessons.reference(tiny_model_dir, given, lesson, head, case.shares)
        for gradients, rank_norm, rank_loss in rank_pool(case.world_size).run(
            lessons.update, case, tiny_model_dir, given, lesson, head, limits
        ):
            assert rank_loss == pytest.approx(loss, rel=1e-5)
            assert rank_norm == pytest.approx(norm, rel=1e-4)
            if gradients:  # ranks that export nothing have none
                assert_same(gradients, want)


@pytest.mark.gate("hf_infer-x1", "fsdp2_infer-x2_0")
@pytest.mark.parametrize("scorer", TEACHERS, ids=str)
def test_what_a_teacher_tells_is_hugging_faces(scorer: Scorer, rank_pool: Pools, teacher_dir: Path) -> None:
    counts = lessons.taught(scorer.shares).response_lengths
    for top_k in (4,) if scorer.name == "megatron_infer" else (0, 4):
        given = lessons.told(top_k)
        lesson, head = lessons.lesson_by_hugging_face(teacher_dir, given, scorer.shares)
        want = np.split(lesson, np.cumsum(counts)[:-1])
        ranks = rank_pool(scorer.world_size).run(lessons.lessons, scorer, teacher_dir, given)
        assert sorted({row for own, _, _ in ranks for row in own}) == list(range(len(counts)))
        for own, found, _ in ranks:
            for row, values in zip(own, found, strict=True):
                np.testing.assert_allclose(values, want[row], rtol=0, atol=2e-5)
        first = ranks[0][2]
        if head is not None:
            assert first is not None and all(other is None for _, _, other in ranks[1:])
            np.testing.assert_array_equal(first.weight, head.weight)


@pytest.mark.gate("deepspeed_train0-x1-zero_optimization-")
@pytest.mark.parametrize(
    ("case", "limits"),
    [
        *(pytest.param(*CASES[i][:2], marks=() if i < 2 else pytest.mark.slow) for i in (0, 1, 3, 5, 6, 7)),
        *(tree[:2] for tree in TREES),
    ],
    ids=lambda value: f"{value}-{'-'.join(value.strategy_config)}" if isinstance(value, Case) else "",
)
def test_the_gradient_of_a_policy_with_a_kl_over_the_vocabulary_is_hugging_faces(
    case: Case, limits: BatchLimits, rank_pool: Pools, tiny_model_dir: Path, teacher_dir: Path
) -> None:
    """`kl_loss_type: full` beside a policy gradient, at a temperature of 1.3; the KL of the reference is torch's."""
    given = Distillation(Divergence("reverse_kl", 1.3, 1.3), lessons.VOCAB)
    loss = PolicyLoss(PolicyGradient(), "token", TOKEN_MEAN, kl_loss_coef=0.6, kl_loss_estimator="full")
    lesson, head = lessons.lesson_by_hugging_face(teacher_dir, given, case.shares)
    assert head is not None
    want, norm, kl = lessons.reference_of_policy(tiny_model_dir, given, lesson, head, 0.6, case.shares)
    for gradients, rank_norm, rank_kl in rank_pool(case.world_size).run(
        lessons.update, case, tiny_model_dir, given, lesson, head, limits, loss
    ):
        assert rank_kl == pytest.approx(kl, rel=1e-5)
        assert rank_norm == pytest.approx(norm, rel=1e-4)
        if gradients:
            assert_same(gradients, want)


def test_what_cannot_be_is_said(rank_pool: Pools, tiny_model_dir: Path, teacher_dir: Path) -> None:
    given = lessons.told(0)
    lesson, head = lessons.lesson_by_hugging_face(teacher_dir, given)
    case = Case("megatron_train", MEGATRON, 2, {"tensor_model_parallel_size": 2})
    with pytest.raises(RankError, match="needs the student's head whole on a rank"):
        rank_pool(2).run(lessons.update, case, tiny_model_dir, given, lesson, head, TWO_ROWS)
    scorer = Scorer("megatron_infer", MEGATRON_INFER, 2, {"tensor_model_parallel_size": 2})
    with pytest.raises(RankError, match="hands over no head"):
        rank_pool(2).run(lessons.lessons, scorer, teacher_dir, given)
