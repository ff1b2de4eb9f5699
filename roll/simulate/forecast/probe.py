"""Measures what the CPUs of this machine do: a program of its own, since torch takes longer than a plan."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence

ROWS = (1, 8, 64, 512)
_WIDTH, _COPIES, _BUDGET_S = 512, 128, 0.25  # 128 MiB of matrices do not stay in a cache


def measure(cores: int) -> dict[str, object]:
    """FLOP/s of a product of so many rows with a matrix, by threads, dtype and rows; bytes per second of a copy;
    seconds of a small operation. Each is the best of several, so that other programs matter less."""
    import torch

    rates: dict[str, dict[str, list[float]]] = {}
    for threads in sorted({1, cores}):
        torch.set_num_threads(threads)
        for dtype in ("fp32", "bf16"):
            kind = torch.float32 if dtype == "fp32" else torch.bfloat16
            weights = [torch.full((_WIDTH, _WIDTH), 0.5, dtype=kind) for _ in range(_COPIES)]
            rates.setdefault(str(threads), {})[dtype] = []
            for rows in ROWS:
                x = torch.full((rows, _WIDTH), 0.5, dtype=kind)
                calls = [lambda w=w, x=x: torch.nn.functional.linear(x, w) for w in weights]
                seconds = _best(calls, 1 if rows > 8 else 16)
                rates[str(threads)][dtype].append(2 * rows * _WIDTH**2 / seconds)
    block, small = torch.ones(1 << 24), torch.zeros(64)
    target = torch.empty_like(block)
    copied = 2 * block.nbytes / _best([lambda: target.copy_(block)], 1)
    torch.set_num_threads(1)
    return {"flops": rates, "copy_bytes_per_s": copied, "operation_s": _best([lambda: small + 1], 200)}


def _best(calls: Sequence[Callable[[], object]], batch: int) -> float:
    """Seconds of a call: the least of batches of them."""
    best, end, at = float("inf"), time.perf_counter() + _BUDGET_S, 0
    while time.perf_counter() < end or at < 4 * batch:
        started = time.perf_counter()
        for _ in range(batch):
            calls[at % len(calls)]()
            at += 1
        best = min(best, (time.perf_counter() - started) / batch)
    return best


if __name__ == "__main__":
    sys.stdout.write(json.dumps(measure(int(sys.argv[1]))))
