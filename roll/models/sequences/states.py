"""Layers that carry a state from token to token (convolutions, recurrences), made to begin anew with each row of a
pack."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import NamedTuple

import torch
from torch import nn
from transformers import PreTrainedModel

from roll.models.sequences.attention import refusal

_OF_PACKS = ("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k", "sequence_ranks", "tree_parts")
_SHORTEST = 2 / 3  # a row beside the longest that it is laid out with: at most half as much padding as tokens


@dataclass(frozen=True)
class AlikeRows:
    """Rows of a pack of similar lengths. `tokens`: the places of theirs in the pack, int64 [n]. `inside`: where these
    stand once the rows lie side by side, bool [rows, longest]."""

    tokens: torch.Tensor
    inside: torch.Tensor

    def apart(self, tokens: torch.Tensor) -> torch.Tensor:
        """Tokens [1, N, ...] as [rows, longest, ...], zeros behind each row's last."""
        padded = tokens.new_zeros(*self.inside.shape, *tokens.shape[2:])
        padded[self.inside] = tokens[0, self.tokens]
        return padded


class RowGroups(NamedTuple):
    """All rows of a pack. `order`: of each token of the pack, its place among those of the groups, int64 [N]."""

    groups: list[AlikeRows]
    order: torch.Tensor


@dataclass(frozen=True)
class RowPlaces:
    """Begins of the rows of a pack, and how they are laid out side by side, once a layer asks. `starts`: int32 [B + 1],
    the last is N."""

    starts: torch.Tensor

    @cached_property
    def groups(self) -> RowGroups:
        """The longest rows first.

        Example: rows of 9, 2, 7 and 3 tokens are two groups, 9 and 7 with 18 places, 3 and 2 with 6.
        """
        return self._groups(_SHORTEST)

    @cached_property
    def one_group(self) -> RowGroups:
        return self._groups(0.0)

    def _groups(self, shortest: float) -> RowGroups:
        starts, lengths = self.starts[:-1].tolist(), self.starts.diff().tolist()
        groups: list[list[int]] = []
        for row in sorted((row for row, length in enumerate(lengths) if length), key=lambda row: -lengths[row]):
            if not groups or lengths[row] < shortest * lengths[groups[-1][0]]:
                groups.append([])
            groups[-1].append(row)
        alike = [self._alike([starts[row] for row in rows], [lengths[row] for row in rows]) for rows in groups]
        return RowGroups(alike, torch.cat([group.tokens for group in alike]).argsort())

    def _alike(self, starts: list[int], lengths: list[int]) -> AlikeRows:
        columns = torch.arange(lengths[0])
        inside = columns < torch.tensor(lengths)[:, None]
        tokens = (torch.tensor(starts)[:, None] + columns)[inside]
        return AlikeRows(tokens.to(self.starts.device), inside.to(self.starts.device))


def state_layers(model: nn.Module) -> list[nn.Module]:
    """The modules in which a token sees others without attention, whose states go through a convolution: those of
    gated delta rules, Mamba, and convolutions alone."""
    return [module for module in model.modules() if any(isinstance(child, nn.Conv1d) for child in module.children())]


def reset_states(model: PreTrainedModel) -> None:
    """Has the model's state layers compute the rows of a pack side by side, those of similar lengths at a time, padded
    on the right, so that no row begins with the state of another one. That is their own arithmetic of a batch, on every
    device: none of their kernels has to know of packs (`cu_seqlens`, `seq_idx`), and their torch forms do not."""
    for layer in state_layers(model):
        layer.forward = partial(_row_by_row, layer, layer.forward)


def _row_by_row(
    layer: nn.Module,
    forward: Callable[..., torch.Tensor],
    hidden_states: torch.Tensor,
    seq_idx: RowPlaces | None = None,
    **kwargs: object,
) -> torch.Tensor:
    """hidden_states [1, N, H] -> [1, N, H]. The rows come as `seq_idx`, which is what families hand to these layers."""
    if seq_idx is None:
        raise refusal(f"{type(layer).__name__} does not learn where the rows of a pack begin")
    kwargs = {key: value for key, value in kwargs.items() if key not in _OF_PACKS}
    # ZeRO-3 gathers each matrix whenever it is used, so that all ranks have to use it equally often.
    is_gathered = hasattr(next(layer.parameters()), "ds_id")
    groups, order = seq_idx.one_group if is_gathered else seq_idx.groups
    parts = [forward(hidden_states=rows.apart(hidden_states), **kwargs)[rows.inside] for rows in groups]
    return torch.cat(parts)[order][None]
