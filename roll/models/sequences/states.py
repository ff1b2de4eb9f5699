"""Layers that carry a state from token to token (convolutions, recurrences), made to begin anew with each row of a
pack."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn
from transformers import PreTrainedModel

from roll.models.sequences.attention import refusal

_OF_PACKS = ("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k", "sequence_ranks", "forest")


@dataclass(frozen=True)
class RowPlaces:
    """Places of the N tokens of a pack among its rows."""

    rows: torch.Tensor  # int64 [N]
    columns: torch.Tensor  # int64 [N]: from 0 in each row
    num_rows: int
    longest: int

    def apart(self, tokens: torch.Tensor) -> torch.Tensor:
        """Tokens [1, N, ...] as [rows, longest, ...], zeros behind each row's last."""
        padded = tokens.new_zeros(self.num_rows, self.longest, *tokens.shape[2:])
        return padded.index_put((self.rows, self.columns), tokens[0])

    def together(self, padded: torch.Tensor) -> torch.Tensor:
        """The inverse."""
        return padded[self.rows, self.columns][None]


def state_layers(model: nn.Module) -> list[nn.Module]:
    """The modules in which a token sees others without attention, whose states go through a convolution: those of
    gated delta rules, Mamba, and convolutions alone."""
    return [module for module in model.modules() if any(isinstance(child, nn.Conv1d) for child in module.children())]


def reset_states(model: PreTrainedModel) -> None:
    """Has the model's state layers compute the rows of a pack side by side, padded on the right, so that no row begins
    with the state of another one. That is their own arithmetic of a batch, on every device: none of their kernels has
    to know of packs (`cu_seqlens`, `seq_idx`), and their torch forms do not."""
    for layer in state_layers(model):
        layer.forward = partial(_row_by_row, layer.forward, type(layer).__name__)


def _row_by_row(
    forward: Callable[..., torch.Tensor],
    name: str,
    hidden_states: torch.Tensor,
    seq_idx: RowPlaces | None = None,
    **kwargs: object,
) -> torch.Tensor:
    """hidden_states [1, N, H] -> [1, N, H]. The rows come as `seq_idx`, which is what families hand to these layers."""
    if seq_idx is None:
        raise refusal(f"{name} is not told where the rows of a pack begin")
    kwargs = {key: value for key, value in kwargs.items() if key not in _OF_PACKS}
    return seq_idx.together(forward(hidden_states=seq_idx.apart(hidden_states), **kwargs))
