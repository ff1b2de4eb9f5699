"""Attention of rows that begin alike, as trees: against each row alone, and its time against that of packed rows."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention

from tests.gpu.check import Figures, largest
from tests.gpu.checks.kernels import _operations
from tests.gpu.place import Place, seconds_of

Rows = list[np.ndarray]


@dataclass(frozen=True)
class Shape:
    """Rows of a micro batch: `count` groups of `size` answers to a prompt, or episodes of as many turns, in whose later
    turns the first `thought` tokens of an answer are not seen. `prompt`: of a group, or what a turn adds."""

    prompt: int
    answer: int
    size: int = 8
    count: int = 1
    turns: bool = False
    thought: int = 0

    def rows(self, vocab_size: int) -> Iterator[tuple[np.ndarray, int]]:
        """Tokens of each row, and how many of them at the end were sampled."""
        chance = np.random.default_rng(0)
        for _ in range(self.count):
            history = np.zeros(0, np.int64)
            for at in range(self.size):
                if self.turns or at == 0:
                    history = np.append(history, chance.integers(3, vocab_size, self.prompt))
                answer = chance.integers(3, vocab_size, self.answer)
                yield np.append(history, answer), self.answer
                if self.turns:
                    history = np.append(history, answer[self.thought :])


# Attention.

_HEADS, _GROUPS = 8, 2
_FORESTS = {
    "cuda": (
        Shape(512, 64, count=2),
        Shape(300, 1),
        Shape(96, 64, size=16, turns=True, thought=32),
        Shape(192, 64, turns=True),
        Shape(2100, 8, size=40),  # more keys than a call takes
        Shape(4200, 2, size=32),  # more copies than levels cost
    ),
    "cpu": (Shape(64, 8, count=2), Shape(30, 1), Shape(12, 8, size=16, turns=True, thought=4)),
}
_WIDTHS = (64, 128, 20, 288)  # the last two: one that no kernel takes, and one that flash does not


def tree_attention(place: Place) -> Figures:
    """Attention of forests, random ones among them, in bf16 and fp32, with and without a window, with grouped heads of
    several widths, against each row alone in fp64: outputs and gradients, as a share of the largest entry. Then its
    time in bf16 for four groups, against that of packed rows."""
    generator = np.random.default_rng(1)
    forests = [[row for row, _ in shape.rows(1000)] for shape in _FORESTS[place.device]]
    forests += [_random_rows(generator, 400 if place.on_cuda else 40) for _ in range(6)]
    gaps = {f"{what}_gap_{dtype}": 0.0 for dtype in ("bf16", "fp32") for what in ("output", "gradient")}
    names: set[str] = set()
    for number, rows in enumerate(forests):
        for dtype, window in itertools.product((torch.bfloat16, torch.float32), (0, 100 if place.on_cuda else 10)):
            width = _WIDTHS[number % len(_WIDTHS)]
            off = _gaps(rows, width, dtype, place.device, window)
            short = "bf16" if dtype == torch.bfloat16 else "fp32"
            what = f"forest {number}, width {width}, window {window}, {short}"
            print(f"{what}: output and gradients off by {off}", flush=True)
            gaps[f"output_gap_{short}"] = largest((gaps[f"output_gap_{short}"], off[0]))
            gaps[f"gradient_gap_{short}"] = largest((gaps[f"gradient_gap_{short}"], *off[1:]))
    names |= _operations(partial(_gaps, forests[0], 64, torch.bfloat16, place.device))
    kernels = {"flash_kernels": float(sum("flash_attention" in name for name in names))}
    return gaps | kernels | _seconds_of_attention(place)


def _random_rows(generator: np.random.Generator, most: int) -> Rows:
    """Copies, beginnings and continuations of each other, on many levels."""
    rows: Rows = [generator.integers(0, 9, most)]
    for _ in range(11):
        base = rows[int(generator.integers(len(rows)))]
        kept = base[: int(generator.integers(len(base) + 1))]
        rows.append(np.append(kept, generator.integers(0, 9, int(generator.integers(not len(kept), most)))))
    return rows


def _gaps(rows: Rows, width: int, dtype: torch.dtype, device: str, window: int = 0) -> list[float]:
    """Of the output, and of the gradients of query, key and value."""
    from roll.models.sequences.tree_attention import TreeParts, tree_attention
    from roll.types.forest import forest_of

    forest = forest_of(rows, least_saved=0)
    torch.manual_seed(0)
    given = [torch.randn(1, forest.num_tokens, heads, width) for heads in (_HEADS, _GROUPS, _GROUPS)]
    pull = torch.randn(forest.num_tokens, _HEADS, width, device=device, dtype=dtype)

    def leaves(of: torch.dtype) -> list[torch.Tensor]:
        """As a model's layers have them: views of [1, N, heads, D]."""
        return [part.to(device, dtype).to(of).transpose(1, 2).detach().requires_grad_() for part in given]

    mine, exact = leaves(dtype), leaves(torch.float64)
    output = tree_attention(mine[0], mine[1], mine[2], TreeParts(forest, torch.device(device)), window=window)[0]
    got = [output.detach(), *torch.autograd.grad(output, mine, pull)]
    alone = torch.zeros(pull.shape, dtype=torch.float64, device=device)
    found = [torch.zeros_like(part) for part in exact]
    done = np.zeros(forest.num_tokens, bool)
    for first, row in zip(forest.first, rows, strict=True):
        places = forest.places[first : first + len(row)]
        new = torch.from_numpy(np.flatnonzero(~done[places])).to(device)  # each token counts in one row
        done[places] = True
        at = torch.from_numpy(places).to(device)
        query, key, value = (part.index_select(2, at) for part in exact)
        sees = torch.ones(len(row), len(row), dtype=torch.bool, device=device).tril().triu(1 - (window or len(row)))
        of_row = scaled_dot_product_attention(query, key, value, attn_mask=sees, enable_gqa=True)[0].transpose(0, 1)
        alone[at[new]] = of_row[new].detach()
        slopes = torch.autograd.grad(of_row[new], exact, pull[at[new]].double())
        for total, slope in zip(found, slopes, strict=True):
            total.add_(slope)
    want = [alone, *found]
    return [float((a - b).abs().max() / b.abs().max()) for a, b in zip(got, want, strict=True)]


def _seconds_of_attention(place: Place) -> dict[str, float]:
    """Forward and backward, of four groups with 14 heads and 2 key-value heads of 64."""
    from roll.models.sequences.packed_attention import packed_attention
    from roll.models.sequences.tree_attention import TreeParts
    from roll.types.forest import forest_of

    shape = Shape(512, 64, count=4) if place.on_cuda else Shape(64, 8)
    rows = [row for row, _ in shape.rows(1000)]
    forest = forest_of(rows)
    starts = torch.tensor([0, *np.cumsum([len(row) for row in rows])], dtype=torch.int32, device=place.device)
    ways: dict[str, tuple[int, dict[str, Any]]] = {
        "packed": (int(starts[-1]), {"cu_seq_lens_q": starts, "max_length_q": max(map(len, rows))}),
        "tree": (forest.num_tokens, {"tree_parts": TreeParts(forest, torch.device(place.device))}),
    }
    figures: dict[str, float] = {}
    for name, (tokens, layout) in ways.items():
        parts = [
            torch.randn(1, tokens, heads, 64, device=place.device, dtype=torch.bfloat16).transpose(1, 2)
            for heads in (14, 2, 2)
        ]
        query, key, value = (part.requires_grad_() for part in parts)
        pull = torch.randn(1, tokens, 14, 64, device=place.device, dtype=torch.bfloat16)

        def passes(
            query: Any = query, key: Any = key, value: Any = value, pull: Any = pull, layout: Any = layout
        ) -> object:
            output, _ = packed_attention(torch.nn.Identity(), query, key, value, 0, **layout)
            return torch.autograd.grad(output, (query, key, value), pull)

        passes()
        figures[f"{name}_ms"] = 1e3 * min(seconds_of(passes, 10) for _ in range(3))
    return figures | {"attention_packed_to_tree": figures["packed_ms"] / figures["tree_ms"]}
