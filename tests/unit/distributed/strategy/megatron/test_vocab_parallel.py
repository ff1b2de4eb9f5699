"""Log-probs and entropy of a divided vocabulary against torch's own over the whole, on threads that stand for ranks."""

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist

from roll.distributed.strategy.megatron import vocab_parallel
from roll.distributed.strategy.megatron.vocab_parallel import VocabShard, token_scores
from tests.helpers.log_probs import with_others

COUNT, HIDDEN, VOCAB = 7, 6, 13


class ThreadGroup:
    """A process group of threads: `all_reduce` waits for all of them."""

    def __init__(self, size: int):
        self._size = size
        self._barrier = threading.Barrier(size)
        self._values: list[torch.Tensor] = [torch.empty(0)] * size

    def member(self, rank: int) -> "Member":
        return Member(self, rank)

    def reduce(self, rank: int, tensor: torch.Tensor, op: Any) -> None:
        self._values[rank] = tensor.clone()
        self._barrier.wait(10)
        stacked = torch.stack(self._values)
        self._barrier.wait(10)
        tensor.copy_(stacked.amax(0) if op == dist.ReduceOp.MAX else stacked.sum(0))

    def run(self, work: Callable[[int], Any]) -> list[Any]:
        results: list[Any] = [None] * self._size
        threads = [
            threading.Thread(target=lambda rank=rank: results.__setitem__(rank, work(rank)))
            for rank in range(self._size)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        return results


class Member:
    def __init__(self, group: ThreadGroup, rank: int):
        self._group, self._rank = group, rank

    def rank(self) -> int:
        return self._rank

    def size(self) -> int:
        return self._group._size

    def reduce(self, tensor: torch.Tensor, op: Any) -> None:
        self._group.reduce(self._rank, tensor, op)


@pytest.fixture(autouse=True)
def reduce_on_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    def all_reduce(tensor: torch.Tensor, op: Any = dist.ReduceOp.SUM, group: Any = None) -> None:
        group.reduce(tensor, op)

    monkeypatch.setattr(vocab_parallel.dist, "all_reduce", all_reduce)


def inputs(padded: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Hidden states, a head whose rows beyond the vocabulary are huge, targets."""
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(COUNT, HIDDEN, generator=generator)
    weight = torch.randn(VOCAB, HIDDEN, generator=generator)
    weight = torch.cat([weight, torch.full((padded - VOCAB, HIDDEN), 50.0)])
    return hidden, weight, torch.randint(0, VOCAB, (COUNT,), generator=generator)


def expected(temperature: float) -> tuple[torch.Tensor, ...]:
    """Log-probs, entropy and the gradients of 2 * sum of log-probs - sum of squared entropies, from whole logits."""
    hidden, weight, targets = inputs(VOCAB)
    hidden.requires_grad_()
    weight.requires_grad_()
    everything = torch.log_softmax(hidden @ weight.T / temperature, -1)
    log_probs = everything.gather(1, targets[:, None])[:, 0]
    entropy = -(everything.exp() * everything).sum(1)
    (2 * log_probs.sum() - entropy.square().sum()).backward()
    assert hidden.grad is not None and weight.grad is not None
    return log_probs.detach(), entropy.detach(), hidden.grad, weight.grad


@pytest.mark.parametrize("logits_per_chunk", [1, 20, 2**26], ids=["one", "some", "all"])
@pytest.mark.parametrize(("ranks", "padded"), [(1, 13), (1, 16), (2, 16), (4, 24)])
def test_scores_and_gradients_equal_those_of_the_whole_vocabulary(
    ranks: int, padded: int, logits_per_chunk: int
) -> None:
    """13 tokens on 4 ranks of 6 rows: the third rank has one real row, the fourth none."""
    temperature = 0.7
    hidden, weight, targets = inputs(padded)
    group = ThreadGroup(ranks)

    def work(rank: int) -> tuple[torch.Tensor, ...]:
        mine = weight.chunk(ranks)[rank].clone().requires_grad_()
        states = hidden.clone().requires_grad_()
        share = VocabShard(group.member(rank), VOCAB, temperature, logits_per_chunk)  # type: ignore[arg-type]
        log_probs, entropy = token_scores(states, mine, targets, share)
        (2 * log_probs.sum() - entropy.square().sum()).backward()
        assert states.grad is not None and mine.grad is not None
        return log_probs.detach(), entropy.detach(), states.grad, mine.grad

    results = group.run(work)
    want = expected(temperature)
    for log_probs, entropy, _, _ in results:
        torch.testing.assert_close(log_probs, want[0], rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(entropy, want[1], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(sum(result[2] for result in results), want[2], rtol=1e-5, atol=1e-5)
    gradient = torch.cat([result[3] for result in results])
    torch.testing.assert_close(gradient[:VOCAB], want[3], rtol=1e-5, atol=1e-5)
    assert not gradient[VOCAB:].any()


def test_no_positions_give_no_scores_and_a_gradient_of_zero() -> None:
    hidden, weight, _ = inputs(VOCAB)
    weight.requires_grad_()
    share = VocabShard(ThreadGroup(1).member(0), VOCAB)  # type: ignore[arg-type]
    log_probs, entropy = token_scores(hidden[:0], weight, torch.empty(0, dtype=torch.int64), share)
    (log_probs.sum() + entropy.sum()).backward()
    assert len(log_probs) == len(entropy) == 0
    assert weight.grad is not None and not weight.grad.any()


def test_logits_of_one_chunk_at_most_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    hidden, weight, targets = inputs(VOCAB)
    sizes: list[int] = []
    real = vocab_parallel._chunks

    def watched(*args: Any) -> Any:
        for span, logits, local, inside in real(*args):
            sizes.append(logits.numel())
            yield span, logits, local, inside

    monkeypatch.setattr(vocab_parallel, "_chunks", watched)
    share = VocabShard(ThreadGroup(1).member(0), VOCAB, logits_per_chunk=3 * VOCAB)  # type: ignore[arg-type]
    token_scores(hidden, weight, targets, share)
    assert sizes == [3 * VOCAB, 3 * VOCAB, VOCAB]


@pytest.mark.parametrize("peak", [1, 12])
def test_several_targets_of_a_position_have_the_log_probs_and_gradients_of_the_whole_vocabulary(peak: float) -> None:
    """And all other tokens together; with a peak down to e-50 of the probability."""
    hidden, weight, _ = inputs(24)
    hidden = peak * hidden
    targets = torch.arange(3 * COUNT).view(COUNT, 3) * 5 % VOCAB
    weights = torch.randn(COUNT, 4, generator=torch.Generator().manual_seed(1))
    group = ThreadGroup(4)

    def work(rank: int) -> tuple[torch.Tensor, ...]:
        mine, states = weight.chunk(4)[rank].clone().requires_grad_(), hidden.clone().requires_grad_()
        share = VocabShard(group.member(rank), VOCAB, 0.7, 20)  # type: ignore[arg-type]
        log_probs, _ = token_scores(states, mine, targets, share)
        (log_probs * weights).sum().backward()
        assert states.grad is not None and mine.grad is not None
        return log_probs.detach(), states.grad, mine.grad

    results = group.run(work)
    whole, states = weight[:VOCAB].double().requires_grad_(), hidden.double().requires_grad_()
    want = with_others(torch.log_softmax(states @ whole.T / 0.7, -1), targets)
    (want * weights).sum().backward()
    assert states.grad is not None and whole.grad is not None
    close: Any = partial(torch.testing.assert_close, rtol=1e-5, atol=1e-5 * peak, check_dtype=False)
    close(results[3][0], want.detach())
    close(sum(result[1] for result in results), states.grad)
    gradient = torch.cat([result[2] for result in results])
    close(gradient[:VOCAB], whole.grad)


@pytest.mark.parametrize("logits_per_chunk", [1, 20, 2**26], ids=["one", "some", "all"])
@pytest.mark.parametrize(("ranks", "padded"), [(1, 16), (2, 16), (4, 24)])
@pytest.mark.parametrize("k", [1, 3, 8])
def test_the_likeliest_tokens_are_those_of_the_whole_vocabulary(
    k: int, ranks: int, padded: int, logits_per_chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More of them than some ranks have tokens, too."""
    hidden, weight, _ = inputs(padded)
    group = ThreadGroup(ranks)
    barrier, shelf = threading.Barrier(ranks), dict[int, torch.Tensor]()

    def all_gather(parts: list[torch.Tensor], own: torch.Tensor, group: Any) -> None:
        shelf[group.rank()] = own
        barrier.wait(10)
        for rank, part in enumerate(parts):
            part.copy_(shelf[rank])
        barrier.wait(10)

    monkeypatch.setattr(vocab_parallel.dist, "all_gather", all_gather)

    def work(rank: int) -> tuple[torch.Tensor, torch.Tensor]:
        share = VocabShard(group.member(rank), VOCAB, 0.7, logits_per_chunk)  # type: ignore[arg-type]
        return vocab_parallel.likeliest(hidden, weight.chunk(ranks)[rank], k, share)

    log_probs = torch.log_softmax(hidden @ weight[:VOCAB].T / 0.7, -1)
    want = log_probs.topk(k).indices
    for found, ids in group.run(work):
        assert ids.tolist() == want.tolist()
        torch.testing.assert_close(found, with_others(log_probs, want), rtol=1e-5, atol=1e-5)
