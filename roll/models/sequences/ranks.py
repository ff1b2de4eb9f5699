"""One sequence on several ranks: each computes its part of the tokens, and in attention all tokens for its part of the
heads (Jacobs et al., "DeepSpeed Ulysses", arXiv 2309.14509, section 3)."""

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist


@dataclass(frozen=True)
class SequenceRanks:
    """The ranks that share a sequence, and this one's place among them. All tensors of an exchange are equal in shape
    on all of them."""

    group: dist.ProcessGroup
    rank: int
    size: int

    def split_heads(self, part: torch.Tensor) -> torch.Tensor:
        """All heads of this rank's tokens [1, heads, n, D] -> this rank's heads of all tokens [1, heads / size, n x
        size, D]."""
        _, heads, tokens, width = part.shape
        by_rank = part[0].view(self.size, heads // self.size, tokens, width).transpose(1, 2).contiguous()
        return self._exchanged(by_rank).flatten(0, 1).transpose(0, 1)[None]

    def split_tokens(self, part: torch.Tensor) -> torch.Tensor:
        """The inverse, with heads behind tokens: [1, n x size, heads / size, D] -> [1, n, heads, D]."""
        by_rank = part[0].unflatten(0, (self.size, -1)).contiguous()
        return self._exchanged(by_rank).transpose(0, 1).flatten(1, 2)[None]

    def whole(self, parts: torch.Tensor) -> torch.Tensor:
        """The sum over the ranks, each of which has filled other places. All compute the same loss from it, so the
        gradient of a place is what its rank has already."""
        total: torch.Tensor = _Sum.apply(parts, self.group)  # type: ignore[assignment]
        return total

    def joined(self, part: torch.Tensor) -> torch.Tensor:
        """The tokens [n, ...] of all ranks, one rank's behind the other's. Without gradient."""
        parts = [torch.empty_like(part) for _ in range(self.size)]
        dist.all_gather(parts, part.contiguous(), group=self.group)
        return torch.cat(parts)

    def _exchanged(self, by_rank: torch.Tensor) -> torch.Tensor:
        received: torch.Tensor = _Exchange.apply(by_rank, self.group)  # type: ignore[assignment]
        return received


class _Exchange(torch.autograd.Function):
    """Piece i of rank j becomes piece j of rank i; the gradient goes back the same way."""

    @staticmethod
    def forward(ctx: Any, pieces: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:  # type: ignore[override]
        ctx.group = group
        received = torch.empty_like(pieces)
        dist.all_to_all_single(received, pieces, group=group)
        return received

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:  # type: ignore[override]
        return _Exchange.apply(gradient.contiguous(), ctx.group), None  # type: ignore[return-value]


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, parts: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:  # type: ignore[override]
        total = parts.clone()
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:  # type: ignore[override]
        return gradient, None
