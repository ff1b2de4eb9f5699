"""Measures what the CPUs of this machine do: a program of its own, since torch takes longer than a plan."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

ROWS = (1, 8, 64, 512)
_WIDTH, _COPIES, _BUDGET_S = 512, 128, 0.25  # 128 MiB of matrices do not stay in a cache


def measure(cores: int) -> dict[str, object]:
    """FLOP/s of a product of so many rows with a matrix, by threads, dtype and rows; FLOP/s of a layer forward and
    backward by one thread; bytes per second of a copy; seconds of a small operation. Each is the best of several, so
    that other programs matter less."""
    import torch

    rates: dict[str, dict[str, list[float]]] = {}
    layers: dict[str, float] = {}
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
            if threads == 1:
                layers[dtype] = _layer_flops_per_s(kind)
    block, small = torch.ones(1 << 24), torch.zeros(64)
    target = torch.empty_like(block)
    copied = 2 * block.nbytes / _best([lambda: target.copy_(block)], 1)
    torch.set_num_threads(1)
    return {
        "flops": rates,
        "layer_flops": layers,
        "copy_bytes_per_s": copied,
        "operation_s": _best([lambda: small + 1], 200),
    }


def _layer_flops_per_s(dtype: torch.dtype) -> float:
    """FLOP/s of products in a transformer's layer, forward and backward: 8 rows of 64 tokens, 8 heads."""
    import torch
    from torch.nn.functional import linear, scaled_dot_product_attention, silu

    torch.manual_seed(0)
    inner = 3 * _WIDTH
    shapes = [(3 * _WIDTH, _WIDTH), (_WIDTH, _WIDTH), (2 * inner, _WIDTH), (_WIDTH, inner)]
    mixed, out, up, down = [(torch.randn(shape) / 32).to(dtype).requires_grad_() for shape in shapes]
    x = torch.randn(8, 64, _WIDTH).to(dtype).requires_grad_()

    def step() -> None:
        q, k, v = linear(x, mixed).view(8, 64, 3, 8, 64).permute(2, 0, 3, 1, 4)
        attended = scaled_dot_product_attention(q, k, v, is_causal=True)
        hidden = x + linear(attended.transpose(1, 2).reshape(x.shape), out)
        gate, value = linear(hidden, up).chunk(2, dim=-1)
        (hidden + linear(silu(gate) * value, down)).sum().backward()

    return 6 * 8 * 64 * sum(rows * columns for rows, columns in shapes) / _best([step], 1)


def _best(calls: Sequence[Callable[[], object]], batch: int) -> float:
    """Seconds of a call: the least of batches of them. One thread's waits for other programs do not count."""
    import torch

    clock = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
    best, end, at = float("inf"), time.perf_counter() + _BUDGET_S, 0
    while time.perf_counter() < end or at < 4 * batch:
        started = clock()
        for _ in range(batch):
            calls[at % len(calls)]()
            at += 1
        best = min(best, (clock() - started) / batch)
    return best


if __name__ == "__main__":
    sys.stdout.write(json.dumps(measure(int(sys.argv[1]))))
