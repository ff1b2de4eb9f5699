"""Peak memory and CPU time of log-probs from hidden states: all logits at once against some of them at a time.

    python benchmarks/chunked_log_prob.py [--positions 4096] [--vocab 32768] [--hidden 256] [--no-entropy]

Forward and backward of log-prob and entropy on one thread, each form in a process of its own, so that one's peak does
not hide the other's: `whole` logits; `head`, the head of Hugging Face models; `shares`, that of Megatron on one
rank. Prints the peak above the inputs, CPU seconds, what both are of those of whole logits, and how far the norms
of the gradients differ."""

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
from roll.configs.sections.model import LOGITS_PER_CHUNK
from roll.distributed.strategy.megatron.vocab_parallel import VocabShard, token_scores
from roll.models.head_scores import HeadRequest, Product, head_scores

FORMS = ("whole", "head", "shares")
Scores = tuple[torch.Tensor, torch.Tensor | None]


class Alone:
    """A process group of one rank."""

    def rank(self) -> int:
        return 0

    def size(self) -> int:
        return 1


def whole(hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor, entropy: bool) -> Scores:
    logits = (hidden @ weight.T).float()
    if not entropy:
        return -torch.nn.functional.cross_entropy(logits, targets, reduction="none"), None
    log_probs = torch.log_softmax(logits, -1)
    return log_probs.gather(1, targets[:, None])[:, 0], -(log_probs.exp() * log_probs).sum(1)


def head(hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor, entropy: bool) -> Scores:
    found = head_scores([Product(hidden, weight)], None, targets, HeadRequest(LOGITS_PER_CHUNK, entropy=entropy))
    return found.log_probs, found.entropy


def shares(hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor, entropy: bool) -> Scores:
    share = VocabShard(Alone(), len(weight), logits_per_chunk=LOGITS_PER_CHUNK)  # type: ignore[arg-type]
    return token_scores(hidden, weight, targets, share)


def measure(form: str, positions: int, vocab: int, hidden_size: int, entropy: bool) -> dict[str, float]:
    """Peak bytes above what the inputs take, CPU seconds, and a fingerprint of the gradients."""
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(positions, hidden_size, generator=generator).requires_grad_()
    weight = (torch.randn(vocab, hidden_size, generator=generator) * 0.05).requires_grad_()
    targets = torch.randint(0, vocab, (positions,), generator=generator)
    torch.mm(torch.ones(64, 64), torch.ones(64, 64))  # what the library sets up once
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started = time.process_time()
    log_probs, entropies = {"whole": whole, "head": head, "shares": shares}[form](hidden, weight, targets, entropy)
    (log_probs.sum() - (0.1 * entropies.sum() if entropy and entropies is not None else 0)).backward()
    seconds = time.process_time() - started
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
    parser.add_argument("--positions", type=int, default=4096)
    parser.add_argument("--vocab", type=int, default=32768)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--no-entropy", action="store_true")
    parser.add_argument("--form", choices=FORMS, help=argparse.SUPPRESS)
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.form:
        found = measure(given.form, given.positions, given.vocab, given.hidden, not given.no_entropy)
        print(json.dumps(found))
        return
    found = {}
    for form in FORMS:
        command = [sys.executable, __file__, "--form", form, *sys.argv[1:]]
        found[form] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        one, its = found["whole"], found[form]
        print(
            f"{form:8} peak {its['peak_bytes'] / 2**20:6.0f} MiB above the inputs (1 / "
            f"{one['peak_bytes'] / its['peak_bytes']:.1f}), {its['seconds']:6.2f} CPU s "
            f"({its['seconds'] / one['seconds']:.2f} x), norms of gradients differ by "
            + ", ".join(f"{abs(one[name] / its[name] - 1):.1e}" for name in ("hidden_gradient", "weight_gradient"))
        )


if __name__ == "__main__":
    main()
