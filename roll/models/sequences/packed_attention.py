"""Attention within the rows of a pack, by where each begins, or of rows that share prefixes."""

from collections.abc import Callable
from functools import partial
from inspect import signature
from itertools import pairwise
from typing import Any, Protocol

import torch
from torch import nn
from torch.nn import functional
from torch.nn.attention.varlen import varlen_attn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel

from roll.configs.strategies.model_numbers import STATES_IN_PARTS, unpackable_layers
from roll.models.sequences.attention import OTHER_FORMS, refusal, set_text_attention, state_layers
from roll.models.sequences.pack import RowPlaces
from roll.models.sequences.ranks import SequenceRanks
from roll.platforms.table import platform_of

PACKED_ATTENTION = "roll_packed"
WIDEST_FLASH = 256  # D
MULTIPLE = 8  # of D: what a GPU's kernels take in any type, 16 bytes at a time
_ASKS_ABOUT_GROUPS = "enable_gqa" in signature(varlen_attn).parameters


def use_packed_attention(model: PreTrainedModel, is_shared: bool = False) -> None:
    """Makes a model that runs sdpa take packs; flash_attention_2 takes them as it is, by the same arguments, but for
    those that ranks share (`is_shared`). Layers with states begin anew with each row, but not where rows are in parts.
    StrategyError for layers that look at rows in another way."""
    config = model.config.get_text_config()
    if others := unpackable_layers(config.model_type, getattr(config, "layer_types", None) or ()):
        raise refusal(f"it has layers of type {', '.join(others)}")
    if is_shared and state_layers(model):
        raise refusal(f"it has {STATES_IN_PARTS}")
    reset_states(model)
    if config._attn_implementation == "flash_attention_2" and not is_shared:
        return
    AttentionInterface.register(PACKED_ATTENTION, packed_attention)
    AttentionMaskInterface.register(PACKED_ATTENTION, reach)
    set_text_attention(model, PACKED_ATTENTION)


def reach(
    *,
    attention_mask: torch.Tensor | None = None,
    local_size: int | None = None,
    use_vmap: bool = False,
    **kwargs: object,
) -> int:
    """Return, in place of a mask, how many tokens a token attends to, itself and those before it; 0 is all of its
    row."""
    if attention_mask is not None:
        raise refusal("an attention mask is given, and a pack has no padding")
    if use_vmap:
        raise refusal("its masks have a form of their own")
    return local_size or 0


class TokenParts(Protocol):
    """Tokens whose attention is computed in parts of its own, as those of rows that share prefixes."""

    def attend(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scaling: float | None, window: int
    ) -> torch.Tensor:
        """Return the attention of the tokens, with shapes and `window` as in `packed_attention`."""
        ...


def packed_attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: int | torch.Tensor | None,
    scaling: float | None = None,
    is_causal: bool | None = None,
    sliding_window: int | None = None,
    cu_seq_lens_q: torch.Tensor | None = None,
    max_length_q: int = 0,
    sequence_ranks: SequenceRanks | None = None,
    tree_parts: TokenParts | None = None,
    **kwargs: object,
) -> tuple[torch.Tensor, None]:
    """Query [1, heads, N, D] with keys and values [1, groups, N, D] -> [1, N, heads, D]. `attention_mask`: what `reach`
    said of this layer. Where ranks share the pack, N are this rank's tokens; with `tree_parts`, the tokens of a forest.
    StrategyError for whatever would see other tokens than in a row of its own."""
    if (cu_seq_lens_q is None and tree_parts is None) or not isinstance(attention_mask, int):
        raise refusal(f"{type(module).__name__} does not learn where the rows of a pack begin")
    if sliding_window is not None and sliding_window != attention_mask:
        raise refusal(f"{type(module).__name__} has a window of {sliding_window}, its mask one of {attention_mask}")
    if is_causal is False or not getattr(module, "is_causal", True):
        raise refusal(f"{type(module).__name__} looks both ways")
    if forms := [name for name in OTHER_FORMS if kwargs.get(name) is not None]:
        raise refusal(f"{type(module).__name__} computes with {' and '.join(forms)}")
    if key.shape[2] != query.shape[2]:
        raise refusal(f"{type(module).__name__} has {key.shape[2]} keys for {query.shape[2]} tokens")
    if tree_parts is not None:
        return tree_parts.attend(query, key, value, scaling, attention_mask), None
    assert cu_seq_lens_q is not None
    if sequence_ranks is not None:
        query, key, value = _some_heads(query, key, value, sequence_ranks)
    if uses_kernel(query.dtype, query.device, max(query.shape[-1], value.shape[-1])):
        q, k, v = (part[0].transpose(0, 1) for part in (query, key, value))
        output = attend_by_kernel(q, k, v, cu_seq_lens_q, max_length_q, scaling, attention_mask)[None]
    else:
        output = _row_by_row(query, key, value, cu_seq_lens_q, scaling, attention_mask)
    return output if sequence_ranks is None else sequence_ranks.split_tokens(output), None


def _some_heads(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, ranks: SequenceRanks
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """This rank's heads of all tokens. Key-value heads that are too few to divide are repeated as often as it takes."""
    heads, groups = query.shape[1], key.shape[1]
    if heads % ranks.size:
        raise refusal(f"{ranks.size} ranks (ulysses_size) do not divide its {heads} attention heads")
    each = heads // groups
    times = next(n for n in range(1, each + 1) if each % n == 0 and groups * n % ranks.size == 0)
    if times > 1:
        key, value = key.repeat_interleave(times, 1), value.repeat_interleave(times, 1)
    return ranks.split_heads(query), ranks.split_heads(key), ranks.split_heads(value)


def _row_by_row(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    starts: torch.Tensor,
    scaling: float | None,
    window: int,
) -> torch.Tensor:
    outputs = []
    for start, stop in pairwise(starts.tolist()):
        band = _band(stop - start, window, query.device) if 0 < window < stop - start else None
        outputs.append(
            scaled_dot_product_attention(
                query[:, :, start:stop],
                key[:, :, start:stop],
                value[:, :, start:stop],
                attn_mask=band,
                is_causal=band is None,
                scale=scaling,
                enable_gqa=query.shape[1] != key.shape[1],
            ).transpose(1, 2)
        )
    return torch.cat(outputs, 1)


def _band(length: int, window: int, device: torch.device) -> torch.Tensor:
    return torch.ones(length, length, dtype=torch.bool, device=device).tril().triu(1 - window)


def uses_kernel(dtype: torch.dtype, device: torch.device, width: int = 0) -> bool:
    """True if rows of any length, with heads as wide as this, go through one kernel, and not one after the other.
    torch.compile follows it into its graph."""
    return dtype != torch.float32 and width <= WIDEST_FLASH and platform_of(device).has_flash_attention


def attend_by_kernel(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    starts: torch.Tensor,
    longest: int,
    scaling: float | None,
    window: int = 0,
) -> torch.Tensor:
    """Query [N, heads, D] with keys and values [N, groups, D] in fp16 or bf16 -> [N, heads, D]: torch's flash kernel
    for rows of any length, which a GPU has. Values may have another width than keys. `starts`: of each row, and N."""
    width, scale = value.shape[-1], query.shape[-1] ** -0.5 if scaling is None else scaling
    query, key, value = of_one_width(query, key, value)
    # Below 2.12 torch does not compare the numbers of heads, and its kernel knows groups all the same.
    groups: dict[str, Any] = {"enable_gqa": query.shape[1] != key.shape[1]} if _ASKS_ABOUT_GROUPS else {}
    output = varlen_attn(
        query,
        key,
        value,
        starts,
        starts,
        longest,
        longest,
        scale=scale,
        window_size=(window - 1 if window else -1, 0),
        **groups,
    )
    assert isinstance(output, torch.Tensor)
    return output[..., :width]


def of_one_width(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, multiple: int = MULTIPLE
) -> list[torch.Tensor]:
    """Query, key and value [..., D] with zeros behind them: kernels take one width, and multiples of some number."""
    width = round_up(max(query.shape[-1], value.shape[-1]), multiple)
    return [
        part if part.shape[-1] == width else functional.pad(part, (0, width - part.shape[-1]))
        for part in (query, key, value)
    ]


def round_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


# Layers that carry a state from token to token (convolutions, recurrences), made to begin anew with each row of a pack.

_OF_PACKS = ("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k", "sequence_ranks", "tree_parts")


def reset_states(model: PreTrainedModel) -> None:
    """Has the model's state layers compute the rows of a pack side by side, those of similar lengths at a time, padded
    on the right, so that no row begins with the state of another one. That is their own arithmetic of a batch, on every
    device: none of their kernels has to know of packs (`cu_seqlens`, `seq_idx`), and their torch forms do not."""
    for layer in state_layers(model):
        layer.forward = partial(_states_by_row, layer, layer.forward)


def _states_by_row(
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
