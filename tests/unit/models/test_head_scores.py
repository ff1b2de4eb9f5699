"""What the head says of tokens, chunk by chunk: against dense float64, with gradients, and never all logits at once."""

import copy
import math
import sys
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from roll.configs.sections.model import FusedKernelOptions
from roll.models.head_scores import PLAIN, HeadRequest, HeadScores, LogitTransform, Product, head_scores
from roll.models.hf import LogProbHead
from tests.helpers.cases import cases
from tests.helpers.log_probs import with_others

N, H, V = 9, 6, 13
SINGLE: Any = partial(torch.testing.assert_close, rtol=1e-5, atol=3e-6, check_dtype=False)
DOUBLE: Any = partial(torch.testing.assert_close, rtol=1e-10, atol=1e-12)


def head(bend: LogitTransform = PLAIN, chunk: int = 100, size: int = H) -> LogProbHead:
    """`chunk`: positions whose logits fit."""
    torch.manual_seed(0)
    return LogProbHead(torch.nn.Linear(size, V), bend, FusedKernelOptions(logits_per_chunk=chunk * V))


def dense(logits: torch.Tensor, targets: torch.Tensor, top_k: int = 0) -> HeadScores:
    """The same from whole logits, as a page of definitions has it."""
    p = torch.log_softmax(logits, -1)
    top = p.detach().topk(top_k) if top_k else None
    entropy = -(p.exp() * p).sum(-1)
    log_probs = p.gather(1, targets[:, None])[:, 0] if targets.dim() == 1 else with_others(p, targets)
    likeliest = (with_others(p.detach(), top.indices), top.indices) if top else (None, None)
    return HeadScores(log_probs, entropy, *likeliest)


def bent(raw: torch.Tensor, bend: LogitTransform) -> torch.Tensor:
    logits = raw * bend.factor
    if bend.softcap is not None:
        logits = torch.tanh(logits / bend.softcap) * bend.softcap
    return logits / bend.temperature


def total(found: HeadScores) -> torch.Tensor:
    """A loss with another weight for every number."""
    terms = [found.log_probs, found.entropy]
    weights = torch.Generator().manual_seed(1)
    loss = torch.zeros((), dtype=torch.float64)
    for term in terms:
        if term is not None:
            loss = loss + (term * torch.randn(term.shape, generator=weights, dtype=torch.float64)).sum()
    return loss


class Case:
    """Hidden states and a head with a low-rank adapter."""

    def __init__(self, dtype: torch.dtype):
        make = torch.Generator().manual_seed(3)

        def draw(*shape: int) -> torch.Tensor:
            return torch.randn(*shape, generator=make, dtype=torch.float64).to(dtype)

        self.hidden, self.weight, self.bias = draw(N, H), draw(V, H), draw(V)
        self.low, self.up = draw(N, 2), draw(V, 2)
        self.targets = torch.arange(2 * N).view(N, 2) * 5 % V
        for tensor in self.leaves:
            tensor.requires_grad_()

    @property
    def leaves(self) -> list[torch.Tensor]:
        return [self.hidden, self.weight, self.bias, self.low, self.up]

    def fused(self, ask: HeadRequest) -> HeadScores:
        products = [Product(self.hidden, self.weight), Product(self.low, self.up)]
        return head_scores(products, self.bias, self.targets, ask)

    def dense(self, ask: HeadRequest) -> HeadScores:
        raw = self.hidden.double() @ self.weight.double().T + self.bias.double()
        raw = raw + self.low.double() @ self.up.double().T
        return dense(bent(raw, ask.transform), self.targets, ask.top_k)


@pytest.mark.parametrize("columns", [1, 4, 5, V], ids="columns={}".format)
@pytest.mark.parametrize("bend", [LogitTransform(), LogitTransform(0.7, 2.0, 1.5)], ids=["plain", "bent"])
@pytest.mark.parametrize(("dtype", "close"), [(torch.float64, DOUBLE), (torch.float32, SINGLE)], ids=["64", "32"])
def test_everything_and_its_gradients_are_those_of_whole_logits_in_float64(
    dtype: torch.dtype, close: Callable[..., None], bend: LogitTransform, columns: int
) -> None:
    """Log-probs of two tokens per position and of all others, entropy, top 3; hidden states, weight, bias and a
    low-rank adapter learn from the sum of all."""
    case, exact = Case(dtype), Case(torch.float64)
    ask = HeadRequest(columns * N, bend, entropy=True, top_k=3)
    found, wanted = case.fused(ask), exact.dense(ask)
    for name, value in wanted._asdict().items():
        close(getattr(found, name), value, msg=lambda text, name=name: f"{name}: {text}")
    total(found).backward()
    total(wanted).backward()
    for mine, theirs in zip(case.leaves, exact.leaves, strict=True):
        close(mine.grad, theirs.grad)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_tokens_that_a_bias_rules_out_have_no_part_in_entropy_or_gradients(
    dtype: torch.dtype, temperature: float
) -> None:
    """Biases of -inf, for some tokens of one tile and all of another: the numbers are those without these tokens."""
    make = torch.Generator().manual_seed(5)
    hidden = torch.randn(N, H, generator=make).to(dtype).requires_grad_()
    weight, bias = torch.randn(V, H, generator=make).to(dtype), torch.zeros(V, dtype=dtype)
    bias[2] = bias[4:8] = -torch.inf
    allowed = bias.isfinite().nonzero()[:, 0]
    targets = torch.arange(N) % len(allowed)
    ask = HeadRequest(4 * N, LogitTransform(temperature=temperature), entropy=True)
    found = head_scores([Product(hidden, weight)], bias, allowed[targets], ask)
    total(found).backward()
    exact = hidden.detach().double().requires_grad_()
    wanted = dense(exact @ weight.double()[allowed].T / temperature, targets)
    total(wanted).backward()
    close = SINGLE if dtype != torch.bfloat16 else partial(SINGLE, rtol=0.05, atol=0.05)
    for name in ("log_probs", "entropy"):
        close(getattr(found, name), getattr(wanted, name))
    close(hidden.grad, exact.grad)


@pytest.mark.parametrize("frozen", ["head", "backbone"])
def test_what_is_frozen_gets_no_gradient_and_the_rest_its_own(frozen: str) -> None:
    made, hidden, targets = head(LogitTransform(softcap=2.0), chunk=2), torch.randn(N, H), torch.arange(N) % V
    exact = copy.deepcopy(made).double()
    states, exact_states = hidden.clone(), hidden.double().requires_grad_()
    states.requires_grad_(frozen != "backbone")
    made.lm_head.requires_grad_(frozen != "head")
    total(made(states, targets, 0.7, True)).backward()
    raw: torch.Tensor = exact.lm_head(exact_states)
    total(dense(bent(raw, LogitTransform(0.7, 2.0)), targets)).backward()
    if frozen == "backbone":
        assert states.grad is None
    else:
        SINGLE(states.grad, exact_states.grad)
    for parameter, reference in zip(made.lm_head.parameters(), exact.lm_head.parameters(), strict=True):
        if frozen == "head":
            assert parameter.grad is None
        else:
            SINGLE(parameter.grad, reference.grad)


class Largest(TorchDispatchMode):
    """The most elements of any tensor that was computed."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for made in result if isinstance(result, list | tuple) else [result]:
            if isinstance(made, torch.Tensor):
                self.elements = max(self.elements, made.numel())
        return result


def test_the_logits_of_all_positions_never_exist_at_once() -> None:
    """40 positions of 13 logits are 520; 5 positions' worth of logits and the head's gradient (13 x 2) may exist."""
    made, hidden = head(chunk=5, size=2), torch.randn(40, 2)
    with Largest() as seen:
        found = made(hidden.requires_grad_(), torch.arange(40) % V, 0.7, True, 3)
        total(found).backward()
    assert seen.elements <= 40 * 6  # six columns: of the top 3 so far and of three more


def test_the_heads_gradient_in_bf16_is_rounded_once_however_many_chunks() -> None:
    """Against float64, relative: bf16 rounds what flows into the head (2**-9 at most, 1.7e-3 in the mean) and the
    result; a sum over 37 parts of the batch rounds 37 times more."""
    torch.manual_seed(0)
    hidden, targets, weight = torch.randn(37 * 8, 16).bfloat16(), torch.randint(0, 100, (37 * 8,)), torch.randn(37 * 8)
    linear = torch.nn.Linear(16, 100, bias=False)
    made = LogProbHead(linear).bfloat16()
    exact = linear.weight.detach().double().requires_grad_()
    errors = []
    for chunk in (8, 37 * 8):
        made.logits_per_chunk = chunk * 100
        made.zero_grad()
        (made(hidden, targets).log_probs * weight).sum().backward()
        exact.grad = None
        log_probs = torch.log_softmax(hidden.double() @ exact.T, -1)[range(37 * 8), targets]
        (log_probs * weight).sum().backward()
        assert linear.weight.grad is not None and exact.grad is not None
        errors.append(float((linear.weight.grad.double() - exact.grad).norm() / exact.grad.norm()))
    assert errors[0] < 1.1 * errors[1] < 4e-3


def test_bf16_scores_are_fp32_of_bf16_products() -> None:
    """Log-probs and entropy within what rounded logits allow: 2**-9 of logits below 4."""
    case, exact = Case(torch.bfloat16), Case(torch.bfloat16)
    ask = HeadRequest(4 * N, entropy=True, top_k=3)
    found, wanted = case.fused(ask), exact.dense(ask)
    for name, value in wanted._asdict().items():
        mine = getattr(found, name)
        if name not in ("top_ids", "divergence"):
            assert mine.dtype == torch.float32
            torch.testing.assert_close(mine.double(), value, rtol=0, atol=0.08)
    total(found).backward()
    assert all(leaf.grad is not None and leaf.grad.dtype == torch.bfloat16 for leaf in case.leaves)


def test_no_position_gives_nothing_and_likeliest_tokens_come_in_order() -> None:
    found = head(chunk=1)(torch.randn(4, H), torch.arange(4), top_k=50)
    assert found.top_ids is not None and found.top_log_probs is not None
    assert found.top_ids.sort(1).values.tolist() == [list(range(V))] * 4
    assert bool((found.top_log_probs[:, :V].diff(dim=1) <= 0).all())
    nothing = math.log(torch.finfo(torch.float32).tiny)
    assert found.top_log_probs[:, V].tolist() == pytest.approx([nothing] * 4, abs=1e-4)
    made, hidden = head(), torch.randn(0, H, requires_grad=True)
    found = made(hidden, torch.zeros(0, dtype=torch.int64), 1.0, True, 3)
    total(found).backward()
    weight: Any = made.lm_head.weight
    assert found.log_probs.shape == (0,) and not weight.grad.any()
    found = head()(torch.randn(4, H), torch.arange(4), 1.0, True, 3)
    assert not [name for name, value in found._asdict().items() if value is not None and value._is_view()]


def test_a_kernel_is_asked_for_plain_log_probs_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for the package, on a CPU: what it is called with, and that torch computes all else."""
    calls: list[dict[str, Any]] = []

    def linear_cross_entropy(states: Any, weight: Any, targets: Any, **options: Any) -> torch.Tensor:
        calls.append(options)
        logits = bent(states @ weight.T + options["bias"], LogitTransform(softcap=options["softcap"]))
        return torch.nn.functional.cross_entropy(logits, targets, reduction=options["reduction"])

    package = ModuleType("cut_cross_entropy")
    monkeypatch.setattr(package, "linear_cross_entropy", linear_cross_entropy, raising=False)
    monkeypatch.setitem(sys.modules, package.__name__, package)
    made, hidden, targets = head(LogitTransform(softcap=2.0)), torch.randn(4, H), torch.arange(4)
    plain = made(hidden, targets)
    made.kernel = "cut_cross_entropy"
    SINGLE(made(hidden, targets).log_probs, plain.log_probs)
    assert [call["impl"] for call in calls] == ["cce_exact"]
    made(hidden, targets, 0.7)
    made(hidden, targets, entropy=True)
    made(hidden, targets, top_k=2)
    assert len(calls) == 1


@pytest.mark.slow
@pytest.mark.parametrize("top_k", [0, 3])
def test_compiled_chunks_give_the_same_numbers(top_k: int) -> None:
    """By inductor and the machine's C++ compiler: tiles of two sizes, everything asked for, with gradients."""
    case, exact = Case(torch.float32), Case(torch.float64)
    ask = HeadRequest(4 * N, LogitTransform(0.7, 2.0), entropy=True, top_k=top_k, compiled=True)
    found, wanted = case.fused(ask), exact.dense(ask)
    for name, value in wanted._asdict().items():
        SINGLE(getattr(found, name), value)
    total(found).backward()
    total(wanted).backward()
    for mine, theirs in zip(case.leaves, exact.leaves, strict=True):
        SINGLE(mine.grad, theirs.grad)


@cases("elements, multiple, positions, columns")
def test_tiles_are_as_wide_as_fits_and_a_multiple(elements: int, multiple: int, positions: int, columns: int) -> None:
    assert HeadRequest(elements, multiple=multiple).columns(positions) == columns
    assert columns * positions <= elements or columns == 1


@cases("given, kind, size")
def test_tiles_suit_the_device(given: int | None, kind: str, size: list[int]) -> None:
    request = HeadRequest.on(kind, given)
    assert [request.tile_elements, request.multiple] == size
