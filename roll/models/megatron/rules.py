"""How one Megatron parameter and its Hugging Face tensors become each other, under any tensor-parallel size.

A rule names the Hugging Face tensors (with `{layer}` and `{expert}` where they occur) and knows two directions:
`split` takes the full tensors and gives the part of one tensor-parallel rank, `merge` takes the parts of all ranks and
gives the full tensors back. What both directions need of the model are `Shapes`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Shapes:
    """Sizes of the model that its weights' layout depends on."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int


@dataclass(frozen=True)
class Rule(ABC):
    """One Megatron parameter. `names` are its Hugging Face tensors, in the order of `split` and `merge`."""

    @property
    @abstractmethod
    def names(self) -> tuple[str, ...]: ...

    @abstractmethod
    def split(self, full: Sequence[torch.Tensor], rank: int, size: int, shapes: Shapes) -> torch.Tensor:
        """The part of tensor-parallel rank `rank` of `size`."""

    @abstractmethod
    def merge(self, parts: Sequence[torch.Tensor], shapes: Shapes) -> list[torch.Tensor]:
        """The full tensors, from the parts of all tensor-parallel ranks in order."""

    @property
    def is_split(self) -> bool:
        """False: every tensor-parallel rank holds the whole."""
        return True


@dataclass(frozen=True)
class Whole(Rule):
    """The same on every tensor-parallel rank: norms, routers, value heads."""

    name: str

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name,)

    @property
    def is_split(self) -> bool:
        return False

    def split(self, full: Sequence[torch.Tensor], rank: int, size: int, shapes: Shapes) -> torch.Tensor:
        return full[0]

    def merge(self, parts: Sequence[torch.Tensor], shapes: Shapes) -> list[torch.Tensor]:
        return [parts[0]]


@dataclass(frozen=True)
class Columns(Rule):
    """A matrix whose input is divided: [out, in / size]."""

    name: str

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name,)

    def split(self, full: Sequence[torch.Tensor], rank: int, size: int, shapes: Shapes) -> torch.Tensor:
        return full[0].chunk(size, dim=1)[rank]

    def merge(self, parts: Sequence[torch.Tensor], shapes: Shapes) -> list[torch.Tensor]:
        return [torch.cat(list(parts), dim=1)]


@dataclass(frozen=True)
class InputRows(Rule):
    """The same where Hugging Face has it the other way round, [in, out]."""

    name: str

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name,)

    def split(self, full: Sequence[torch.Tensor], rank: int, size: int, shapes: Shapes) -> torch.Tensor:
        return full[0].chunk(size)[rank].T

    def merge(self, parts: Sequence[torch.Tensor], shapes: Shapes) -> list[torch.Tensor]:
        return [torch.cat(list(parts), dim=1).T]


@dataclass(frozen=True)
class Rows(Rule):
    """A matrix whose output is divided, [out / size, in], or one number per output."""

    name: str

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name,)

    def split(self, full: Sequence[torch.Tensor], rank: int, size: int, shapes: Shapes) -> torch.Tensor:
        return full[0].chunk(size)[rank]

    def merge(self, parts: Sequence[torch.Tensor], shapes: Shapes) -> list[torch.Tensor]:
        return [torch.cat(list(parts))]


@dataclass(frozen=True)
class Vocabulary(Rule):
    """A row per token: [padded vocabulary / size, hidden]. Rows beyond the vocabulary are zeros and leave again on the
    way back."""

    name: str

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name,)

    def split(self, full: Sequence[torch.Tensor], rank: int, size: int, shapes: Shapes) -> torch.Tensor:
        rows = padded_vocab_size(shapes.vocab_size, size) // size
        mine = full[0][rank * rows : (rank + 1) * rows]
        return torch.nn.functional.pad(mine, (0, 0, 0, rows - len(mine)))

    def merge(self, parts: Sequence[torch.Tensor], shapes: Shapes) -> list[torch.Tensor]:
        return [torch.cat(list(parts))[: shapes.vocab_size]]


@dataclass(frozen=True)
class GateUp(Rule):
    """Two matrices in one, each rank's gate rows above its up rows."""

    gate: str
    up: str

    @property
    def names(self) -> tuple[str, ...]:
        return (self.gate, self.up)

    def split(self, full: Sequence[torch.Tensor], rank: int, size: int, shapes: Shapes) -> torch.Tensor:
        return torch.cat([tensor.chunk(size)[rank] for tensor in full])

    def merge(self, parts: Sequence[torch.Tensor], shapes: Shapes) -> list[torch.Tensor]:
        gates, ups = zip(*(part.chunk(2) for part in parts), strict=True)
        return [torch.cat(gates), torch.cat(ups)]


@dataclass(frozen=True)
class FusedGateUp(Rule):
    """The same where Hugging Face has one matrix, too: all gate rows above all up rows."""

    name: str

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name,)

    def split(self, full: Sequence[torch.Tensor], rank: int, size: int, shapes: Shapes) -> torch.Tensor:
        return _APART.split(full[0].chunk(2), rank, size, shapes)

    def merge(self, parts: Sequence[torch.Tensor], shapes: Shapes) -> list[torch.Tensor]:
        return [torch.cat(_APART.merge(parts, shapes))]


@dataclass(frozen=True)
class InterleavedGateUp(Rule):
    """The same where Hugging Face has a gate channel beside its up channel, in the last dimension: [in, 2 * out], or
    [2 * out] of biases."""

    name: str

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name,)

    def split(self, full: Sequence[torch.Tensor], rank: int, size: int, shapes: Shapes) -> torch.Tensor:
        rows = full[0].movedim(-1, 0)
        return _APART.split([rows[::2], rows[1::2]], rank, size, shapes)

    def merge(self, parts: Sequence[torch.Tensor], shapes: Shapes) -> list[torch.Tensor]:
        return [torch.stack(_APART.merge(parts, shapes), dim=1).flatten(0, 1).movedim(0, -1)]


_APART = GateUp("gate", "up")


@dataclass(frozen=True)
class QueryKeyValue(Rule):
    """Three matrices (or biases) in one, by key-value head: its query heads, its key head, its value head, then the
    next.

    Example: 4 heads, 2 key-value heads: q0 q1 k0 v0 | q2 q3 k1 v1. Tensor parallel 2 cuts at the bar.
    """

    query: str
    key: str
    value: str

    @property
    def names(self) -> tuple[str, ...]:
        return (self.query, self.key, self.value)

    def split(self, full: Sequence[torch.Tensor], rank: int, size: int, shapes: Shapes) -> torch.Tensor:
        groups, rest = shapes.num_kv_heads, full[0].shape[1:]
        by_group = [tensor.reshape(groups, -1, *rest).chunk(size)[rank] for tensor in full]
        return torch.cat(by_group, dim=1).reshape(-1, *rest)

    def merge(self, parts: Sequence[torch.Tensor], shapes: Shapes) -> list[torch.Tensor]:
        whole = torch.cat(list(parts))
        rest = whole.shape[1:]
        queries = shapes.num_heads // shapes.num_kv_heads * shapes.head_dim
        by_group = whole.reshape(shapes.num_kv_heads, -1, *rest).split(
            [queries, shapes.head_dim, shapes.head_dim], dim=1
        )
        return [tensor.reshape(-1, *rest) for tensor in by_group]


def padded_vocab_size(vocab_size: int, tensor_parallel: int) -> int:
    """Rows of the embedding: the vocabulary, rounded up so that tensor-parallel ranks have equally many, in eights.

    Example: 100 tokens on 2 ranks: 112, 56 each.
    """
    step = 8 * tensor_parallel
    return -(-vocab_size // step) * step
