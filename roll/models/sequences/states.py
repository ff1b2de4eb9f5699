"""Layers that carry a state from token to token (convolutions, recurrences), made to begin anew with each row of a
pack."""

from collections.abc import Callable
from functools import partial

import torch
from torch import nn
from transformers import PreTrainedModel

from roll.models.sequences.attention import refusal, state_layers
from roll.models.sequences.pack import RowPlaces

_OF_PACKS = ("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k", "sequence_ranks", "tree_parts")


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
