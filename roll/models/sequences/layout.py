"""Rows of tokens as a backbone takes them: padded, one behind the other, or with shared prefixes computed once."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch.autograd.function import once_differentiable

from roll.models.sequences.ranks import SequenceRanks

UNKNOWN = -1  # in place of an expert: the router chooses for itself


def computed(lengths: torch.Tensor) -> torch.Tensor:
    """Tokens of each row that are computed: all but its last, which predicts nothing we have."""
    return (lengths - 1).clamp(min=1)


class RowPictures(Protocol):
    """Pictures of the rows of a batch [B, T] (`roll/models/vision/inputs.py`)."""

    @property
    def positions(self) -> torch.Tensor | None:
        """Positions of the tokens in time, vertically and horizontally, int64 [3, B, T]; None: those of text."""
        ...

    def arguments(self, width: int) -> dict[str, torch.Tensor]:
        """Arguments of the backbone for the first `width` tokens of padded rows, but for the pictures themselves."""
        ...

    def encode(self, backbone: Any, arguments: dict[str, Any]) -> Any:
        """Return the backbone's output for these arguments and the pictures."""
        ...


class RowLayout(ABC):
    """How the tokens of B rows become the n tokens that a backbone computes, and where each is found again."""

    @property
    def ranks(self) -> SequenceRanks | None:
        """Ranks that share the tokens, each with a part; None: all are here."""
        return None

    @property
    def picture_inputs(self) -> RowPictures | None:
        """The pictures of the rows; None: they show none, and the run shows none."""
        return None

    @property
    @abstractmethod
    def arguments(self) -> dict[str, Any]:
        """The arguments of the backbone's forward pass, but for the pictures themselves."""

    @abstractmethod
    def places(self, rows: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
        """Places of these tokens of the rows among the n computed ones. Tokens of other ranks get places outside of
        them."""

    def asked_once(
        self, places: torch.Tensor, tokens: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """Return the pairs of a place and the token that follows it that a head computes, and which of them each of the
        given pairs is; None: they are the given ones."""
        return places, tokens, None

    def has(self, places: torch.Tensor) -> torch.Tensor:
        """Mark the places that are in this rank's part, bool."""
        return torch.ones_like(places, dtype=torch.bool)

    @abstractmethod
    def row_tokens(self) -> torch.Tensor:
        """The place of every computed token of every row, int64 [m], row after row; of this rank's part."""

    @abstractmethod
    def of_tokens(self, routes: torch.Tensor) -> torch.Tensor:
        """Select the routes of the computed tokens, [n, layers, k], from the rows' [B, T, layers, k]."""

    @abstractmethod
    def of_rows(self, routes: torch.Tensor, input_ids: torch.Tensor) -> torch.Tensor:
        """The inverse: [n, layers, k] -> [B, T, layers, k] on the CPU; what was not computed is `UNKNOWN`."""


@dataclass(frozen=True)
class Padded(RowLayout):
    """Rows [B, T] without their last column, unless they `are_whole`."""

    input_ids: torch.Tensor  # int64 [B, T]
    lengths: torch.Tensor | None = None  # int64 [B]; asked for where tokens are counted
    pictures: RowPictures | None = None
    are_whole: bool = False

    @property
    def picture_inputs(self) -> RowPictures | None:
        return self.pictures

    @property
    def width(self) -> int:
        return max(self.input_ids.shape[1] - (not self.are_whole), 1)

    @property
    def arguments(self) -> dict[str, Any]:
        arguments: dict[str, Any] = {"input_ids": self.input_ids[:, : self.width], "use_cache": False}
        if self.pictures is not None:
            arguments |= self.pictures.arguments(self.width)
        return arguments

    def places(self, rows: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
        return rows * self.width + columns

    def row_tokens(self) -> torch.Tensor:
        assert self.lengths is not None, "padding is counted by the lengths of the rows"
        columns = torch.arange(self.width, device=self.input_ids.device)
        return (columns < computed(self.lengths)[:, None]).flatten().nonzero()[:, 0]

    def of_tokens(self, routes: torch.Tensor) -> torch.Tensor:
        return routes[:, : self.width].flatten(0, 1)

    def of_rows(self, routes: torch.Tensor, input_ids: torch.Tensor) -> torch.Tensor:
        rows = routes.new_full((*input_ids.shape, *routes.shape[1:]), UNKNOWN)
        rows[:, : self.width] = routes.unflatten(0, (-1, self.width))
        return rows.cpu()


def rows_at(hidden: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """hidden [N, H] at places [n]. Gradients of a place that comes often add up in fp32, and are rounded once."""
    rows: torch.Tensor = _Rows.apply(hidden, places)  # type: ignore[assignment]
    return rows


class _Rows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: torch.Tensor, places: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        ctx.save_for_backward(places)
        ctx.shape = hidden.shape
        return hidden.index_select(0, places)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:  # type: ignore[override]
        (places,) = ctx.saved_tensors
        total = gradient.new_zeros(ctx.shape, dtype=torch.promote_types(gradient.dtype, torch.float32))
        return total.index_add_(0, places, gradient.to(total.dtype)).to(gradient.dtype), None
