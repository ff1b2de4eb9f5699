"""How far a student's head is from its teacher, chunk by chunk: against dense float64, with gradients, and never all
logits at once."""

from typing import Any, get_args

import numpy as np
import pytest
import torch
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from roll.algorithms.distillation import Distillation, Divergence
from roll.configs.tables.policy_losses import KdObjective
from roll.errors import StrategyError
from roll.features.teachers.targets import (
    StudentOutputs,
    TeacherTargets,
    among_response_tokens,
    targets_of,
)
from roll.models.head_scores import LogitTransform, Product, TeacherHead, pack_top_k_targets, wide
from tests.helpers.log_probs import with_others

N, H, THEIR_H, VOCAB, ROWS = 7, 6, 4, 13, 16
BEND, THEIR_BEND = LogitTransform(softcap=5.0, factor=1.5), LogitTransform(factor=0.8)


class Case:
    """A student whose head has a low-rank adapter and rows beyond the vocabulary, and a teacher of another width."""

    def __init__(self, dtype: torch.dtype = torch.float64):
        make = torch.Generator().manual_seed(4)

        def draw(*shape: int) -> torch.Tensor:
            return torch.randn(*shape, generator=make, dtype=torch.float64).to(dtype)

        self.hidden, self.weight, self.bias = draw(N, H), draw(ROWS, H), draw(ROWS)
        self.low, self.up = draw(N, 2), draw(ROWS, 2)
        self.states, self.matrix, self.offset = draw(N, THEIR_H), draw(VOCAB, THEIR_H), draw(VOCAB)
        for tensor in self.leaves:
            tensor.requires_grad_()

    @property
    def leaves(self) -> list[torch.Tensor]:
        return [self.hidden, self.weight, self.bias, self.low, self.up]

    def log_probs(self, kind: Divergence) -> tuple[torch.Tensor, torch.Tensor]:
        """Of the first VOCAB tokens, from whole logits."""
        raw = self.hidden @ self.weight.T + self.bias + self.low @ self.up.T
        logits = torch.tanh(raw * 1.5 / 5) * 5 / kind.temperature
        theirs = (self.states @ self.matrix.T + self.offset) * 0.8 / kind.teacher_temperature
        return torch.log_softmax(logits[:, :VOCAB], -1), torch.log_softmax(theirs, -1)

    def lesson(self, told: Distillation) -> TeacherTargets:
        if told.top_k:
            log_q = self.log_probs(told.divergence)[1]
            ids = log_q.topk(told.top_k).indices
            return TeacherTargets(StudentOutputs(told), pack_top_k_targets(with_others(log_q, ids), ids))
        parts = self.matrix.to(wide(self.matrix.dtype)).numpy(), self.offset.to(wide(self.offset.dtype)).numpy()
        head = TeacherHead(*parts, THEIR_BEND, self.matrix.dtype)
        return TeacherTargets(StudentOutputs.of(told, head, torch.device("cpu")), self.states)

    def found(self, told: Distillation, elements: int) -> torch.Tensor:
        products = [Product(self.hidden, self.weight), Product(self.low, self.up)]
        return self.lesson(told).divergence(products, self.bias, BEND, elements, False)


def told(objective: KdObjective, top_k: int = 0) -> Distillation:
    return Distillation(Divergence(objective, 1.7, 0.6, 0.6, 0.2), VOCAB, top_k)


@pytest.mark.parametrize("elements", [1, 3 * ROWS, 10**6], ids=["one", "some", "all"])
@pytest.mark.parametrize("objective", get_args(KdObjective))
def test_over_the_vocabulary_it_is_that_of_whole_logits(objective: KdObjective, elements: int) -> None:
    case, exact, given = Case(), Case(), told(objective)
    found, wanted = case.found(given, elements), given.divergence.of_all(*exact.log_probs(given.divergence))
    torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-12)
    for values in (found, wanted):
        values.square().sum().backward()
    for mine, theirs in zip(case.leaves, exact.leaves, strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-9, atol=1e-12)
    assert case.weight.grad is not None and not case.weight.grad[VOCAB:].any()


@pytest.mark.parametrize("elements", [N, 5 * N, 10**6], ids=["one", "some", "all"])
@pytest.mark.parametrize("objective", get_args(KdObjective))
def test_of_the_likeliest_tokens_it_is_that_of_whole_logits(objective: KdObjective, elements: int) -> None:
    case, exact, given = Case(), Case(), told(objective, 3)
    log_p, log_q = exact.log_probs(given.divergence)
    ids = log_q.topk(3).indices
    found = case.found(given, elements)
    wanted = given.divergence.of_likeliest(with_others(log_p, ids), with_others(log_q, ids))
    torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-12)
    for values in (found, wanted):
        values.square().sum().backward()
    for mine, theirs in zip(case.leaves, exact.leaves, strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-9, atol=1e-12)


def test_a_frozen_head_gets_no_gradient_and_bf16_stays_near() -> None:
    case, exact, given = Case(torch.bfloat16), Case(), told("forward_kl")
    case.weight.requires_grad_(False)
    found = case.found(given, 2 * ROWS)
    found.sum().backward()
    wanted = given.divergence.of_all(*exact.log_probs(given.divergence))
    assert found.dtype == torch.float32 and case.weight.grad is None and case.hidden.grad is not None
    torch.testing.assert_close(found.double(), wanted, rtol=0.1, atol=0.1)


class Largest(TorchDispatchMode):
    """The number of elements of the largest tensor that an operation makes."""

    size = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if isinstance(made, torch.Tensor):
            self.size = max(self.size, made.numel())
        return made


@pytest.mark.parametrize("top_k", [0, 2])
def test_whole_logits_never_exist(top_k: int) -> None:
    """400 positions and a vocabulary of 300 are 120,000 logits; 3,000 are allowed at a time. The largest tensor is a
    few times that: what the teacher tells, and rows of hidden states."""
    make = torch.Generator().manual_seed(0)
    hidden, weight = torch.randn(400, 8, generator=make).requires_grad_(), torch.randn(300, 8, generator=make)
    given = Distillation(Divergence("js_divergence"), 300, top_k)
    head = TeacherHead(weight.numpy(), None, LogitTransform(), torch.float32)
    values = torch.randn(400, 8, generator=make)
    if top_k:
        log_q = torch.log_softmax(values @ weight.T, -1)
        ids = log_q.topk(top_k).indices
        values, head = pack_top_k_targets(with_others(log_q, ids), ids), None
    lesson = TeacherTargets(StudentOutputs.of(given, head, torch.device("cpu")), values)
    with Largest() as seen:
        products = [Product(hidden, weight.requires_grad_())]
        lesson.divergence(products, None, LogitTransform(), 3000, False).sum().backward()
    assert 2400 <= seen.size <= 3600


def test_ids_of_large_vocabularies_come_back_exactly_and_tokens_are_found_by_their_place() -> None:
    ids = torch.tensor([[2**24 - 1, 0, 151_935]])
    values = pack_top_k_targets(torch.zeros(1, 4), ids)
    assert TeacherTargets(StudentOutputs(told("forward_kl", 3)), values).likeliest()[1].tolist() == ids.tolist()
    mask = torch.tensor([[False, True, False], [True, False, True]])
    assert among_response_tokens(mask, torch.tensor([1, 3, 5])).tolist() == [0, 1, 2]
    assert targets_of(None, None) is None
    with pytest.raises(StrategyError, match="before set_teacher_head"):
        targets_of(None, values)


def test_a_head_travels_in_full_precision_and_computes_in_its_own() -> None:
    weight = torch.randn(5, 3).to(torch.bfloat16)
    head = TeacherHead(weight.float().numpy(), np.zeros(5, np.float32), LogitTransform(), torch.bfloat16)
    study = StudentOutputs.of(told("forward_kl"), head, torch.device("cpu"))
    assert study.weight is not None and study.weight.equal(weight) and study.transform.temperature == 0.6
    assert functional.linear(torch.ones(1, 3, dtype=torch.bfloat16), study.weight, study.bias).dtype == torch.bfloat16
