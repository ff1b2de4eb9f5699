"""Peak memory and time of log-probs from hidden states: all logits at once against some positions at a time.

    python benchmarks/chunked_log_prob.py [--positions 2048] [--vocab 32000] [--hidden 256]

Forward and backward of log-prob and entropy in one process (a vocabulary share of one rank), each form in a process of
its own, so that one's peak does not hide the other's. Prints both peaks above the inputs, their ratio, the ratio of
times, and how far the norms of the gradients differ."""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from roll.distributed.strategy.megatron.vocab_parallel import VocabShare, token_scores


class Alone:
    """A process group of one rank."""

    def rank(self) -> int:
        return 0

    def size(self) -> int:
        return 1


def naive(hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    log_probs = torch.log_softmax((hidden @ weight.T).float(), -1)
    return log_probs.gather(1, targets[:, None])[:, 0], -(log_probs.exp() * log_probs).sum(1)


def chunked(hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    share = VocabShare(Alone(), len(weight), chunk_elements=2**22)  # type: ignore[arg-type]
    return token_scores(hidden, weight, targets, share)


def measure(form: str, positions: int, vocab: int, hidden_size: int) -> dict[str, float]:
    """Peak bytes above what the inputs take, seconds, and a fingerprint of the gradients."""
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(positions, hidden_size, generator=generator).requires_grad_()
    weight = (torch.randn(vocab, hidden_size, generator=generator) * 0.05).requires_grad_()
    targets = torch.randint(0, vocab, (positions,), generator=generator)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started = time.perf_counter()
    log_probs, entropy = (naive if form == "naive" else chunked)(hidden, weight, targets)
    (log_probs.sum() - 0.1 * entropy.sum()).backward()
    seconds = time.perf_counter() - started
    peak = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    assert hidden.grad is not None and weight.grad is not None
    return {
        "peak_bytes": peak,
        "seconds": seconds,
        "hidden_gradient": float(hidden.grad.norm()),
        "weight_gradient": float(weight.grad.norm()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--positions", type=int, default=2048)
    parser.add_argument("--vocab", type=int, default=32000)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--form", choices=("naive", "chunked"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    torch.set_num_threads(1)
    sizes = (given.positions, given.vocab, given.hidden)
    if given.form:
        print(json.dumps(measure(given.form, *sizes)))
        return
    found = {}
    for form in ("naive", "chunked"):
        command = [sys.executable, __file__, "--form", form]
        for name, value in zip(("--positions", "--vocab", "--hidden"), sizes, strict=True):
            command += [name, str(value)]
        output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        found[form] = json.loads(output)
        peak, seconds = found[form]["peak_bytes"] / 2**20, found[form]["seconds"]
        print(f"{form:8} peak {peak:8.0f} MiB above the inputs, {seconds:6.2f} s")
    one, other = found["naive"], found["chunked"]
    print(
        f"memory {one['peak_bytes'] / other['peak_bytes']:.1f} x less, time {other['seconds'] / one['seconds']:.2f} x"
    )
    for name in ("hidden_gradient", "weight_gradient"):
        print(f"{name}: relative difference of norms {abs(one[name] / other[name] - 1):.1e}")


if __name__ == "__main__":
    main()
