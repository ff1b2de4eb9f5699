"""The cache of batches whose rows come and go: keys and values, preallocated, left padded, all rows ending at the same
column; and what layers with a state carry from token to token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface, DynamicCache, PretrainedConfig, PreTrainedModel
from transformers.cache_utils import Cache, CacheLayerMixin, LinearAttentionCacheLayerMixin, LinearAttentionLayer
from transformers.masking_utils import sdpa_mask

from roll.configs.strategies.model_numbers import unsampled
from roll.configs.tables.sight import VisionModel
from roll.errors import StrategyError
from roll.models.routers import RouterReplay
from roll.models.sequences.attention import OTHER_FORMS, set_text_attention, whole_sdpa
from roll.models.vision.inputs import positions as positions_of
from roll.models.vision.inputs import tensors
from roll.types.media import Media, pictures_of

# Attention of one new token per row, for decoding on a CPU.

DECODE_ATTENTION = "roll_decode"


def use_decode_attention(model: PreTrainedModel) -> None:
    """Makes a model that runs sdpa on a CPU decode with `decode_attention`."""
    config = model.config.get_text_config()
    if model.device.type == "cpu" and config._attn_implementation == "sdpa":
        AttentionInterface.register(DECODE_ATTENTION, decode_attention)
        AttentionMaskInterface.register(DECODE_ATTENTION, sdpa_mask)
        set_text_attention(model, DECODE_ATTENTION)


def decode_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **kwargs: object,
) -> tuple[torch.Tensor, None]:
    """Query [B, heads, 1, D] with keys and values [B, groups, T, D] -> [B, 1, heads, D]. Longer queries go to sdpa.

    Hugging Face's sdpa copies keys and values once per query head as soon as there is a mask, and torch's CPU kernel is
    made for long queries: together a third of a step of a small model.
    """
    if query.shape[2] != 1 or any(kwargs.get(name) is not None for name in OTHER_FORMS):
        return whole_sdpa(module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs)
    batch, heads, _, width = query.shape
    groups = key.shape[1]
    is_additive = attention_mask is None or attention_mask.dtype == query.dtype
    if query.dtype != torch.float32 or not is_additive:  # softmax in half precision would lose digits
        grouped = scaled_dot_product_attention(
            query, key, value, attention_mask, scale=scaling, enable_gqa=groups != heads
        )
        return grouped.transpose(1, 2), None
    scaled = query * (width**-0.5 if scaling is None else scaling)
    scores = torch.matmul(scaled.view(batch, groups, heads // groups, width), key.transpose(2, 3))
    if attention_mask is not None:
        scores += attention_mask
    return torch.matmul(torch.softmax(scores, -1), value).view(batch, 1, heads, value.shape[-1]), None


_GROWTH_COLUMNS = 64


class _BatchLayer(CacheLayerMixin):
    """Keys and values [B, heads, columns, head_dim] of one layer. Writes go to the next columns of a buffer that
    grows by doubling, where DynamicCache copies everything at every token."""

    is_sliding = False

    def __init__(self, capacity: int):
        super().__init__()
        self.capacity = capacity
        self.length = 0

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        self.keys = _buffer(key_states, key_states.shape[0], self.capacity)
        self.values = _buffer(value_states, value_states.shape[0], self.capacity)
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: object, **kwargs: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        start, end = self.length, self.length + key_states.shape[2]
        if not self.is_initialized:
            self.capacity = max(self.capacity, end)
            _BatchLayer.lazy_initialization(self, key_states, value_states)
        assert self.keys is not None
        assert self.values is not None
        if end > self.capacity:
            self.capacity = max(end + _GROWTH_COLUMNS, 2 * self.capacity)
            self.keys = _widened(self.keys, start, self.capacity)
            self.values = _widened(self.values, start, self.capacity)
        self.keys[:, :, start:end] = key_states
        self.values[:, :, start:end] = value_states
        self.length = end
        return self.used()

    def used(self) -> tuple[torch.Tensor, torch.Tensor]:
        assert self.keys is not None
        assert self.values is not None
        return self.keys[:, :, : self.length], self.values[:, :, : self.length]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.length + query_length, 0

    def get_seq_length(self) -> int:
        return self.length

    def get_max_length(self) -> int:
        return -1


class _StateLayer(LinearAttentionLayer):
    """State that a layer carries from token to token, by transformers' own class: the last inputs of a convolution, the
    state of a recurrence, or both. Layers of other kinds that cache nothing have one, too, and it stays empty."""

    padding: torch.Tensor | None = None  # bool [B, T]: of the tokens to come, those that are none

    def update_conv_state(  # pyright: ignore[reportIncompatibleMethodOverride]  # the layers pass no more
        self, conv_states: torch.Tensor, state_idx: int = 0, conv_kernel_size: int | None = None
    ) -> torch.Tensor:
        # The layers empty padding before their first projection, whose bias fills it again.
        if self.padding is not None:
            conv_states = conv_states.masked_fill(self.padding[:, None], 0.0)
        return super().update_conv_state(conv_states, state_idx, conv_kernel_size)

    def take(self, sources: Sequence[_StateLayer], rows: Sequence[torch.Tensor]) -> None:
        """The states of these rows of each source, one below the other."""
        first = sources[0]
        for index in range(self.number_of_states):
            for name in ("conv", "recurrent"):
                if getattr(first, f"is_{name}_states_initialized")[index]:
                    states = [getattr(source, f"{name}_states")[index] for source in sources]
                    chosen = [state.index_select(0, those) for state, those in zip(states, rows, strict=True)]
                    getattr(self, f"{name}_states")[index] = torch.cat(chosen)
                    getattr(self, f"is_{name}_states_initialized")[index] = True
        self.has_previous_state = dict(first.has_previous_state)
        self.conv_kernel_size = dict(first.conv_kernel_size)
        self.dtype, self.device = first.dtype, first.device


class _WholeLayer(_StateLayer, _BatchLayer):  # pyright: ignore[reportIncompatibleMethodOverride]  # as transformers' own
    """The cache of a layer that attends and has a state."""

    is_compileable = False

    def __init__(self, capacity: int, number_of_states: int):
        _BatchLayer.__init__(self, capacity)
        _StateLayer.__init__(self, number_of_states)


class BatchCache(Cache):
    """The cache of a batch, in Hugging Face's form: any model that takes a `Cache` writes to it."""

    def __init__(self, config: PretrainedConfig, capacity: int):
        """`config`: of the text model, which says what each layer caches."""
        self.config = config
        super().__init__(layers=[_layer(layer, capacity) for layer in DynamicCache(config=config).layers])

    @property
    def length(self) -> int:
        """Columns in use."""
        return next(layer.length for layer in self.layers if isinstance(layer, _BatchLayer))

    def hide(self, padding: torch.Tensor | None) -> None:
        """Has no state hold anything of this padding of the next pass, bool [B, T]."""
        for layer in self.layers:
            if isinstance(layer, _StateLayer):
                layer.padding = padding


def _layer(like: CacheLayerMixin | LinearAttentionCacheLayerMixin, capacity: int) -> _BatchLayer | _StateLayer:
    """The counterpart of a layer of transformers' own cache."""
    if not isinstance(like, LinearAttentionCacheLayerMixin):
        return _BatchLayer(capacity)
    both = isinstance(like, CacheLayerMixin)
    return _WholeLayer(capacity, like.number_of_states) if both else _StateLayer(like.number_of_states)


@dataclass(frozen=True)
class Part:
    """Rows of a cache that go into a new one, in this order (a row may be repeated), without its first `trim`
    columns."""

    cache: Any  # of the decoder's own class
    rows: torch.Tensor  # int64
    trim: int = 0

    @property
    def length(self) -> int:
        return self.cache.length - self.trim


def assemble(parts: Sequence[Part], capacity: int) -> BatchCache:
    """A new cache of all these rows, one part below the other, each shifted right so that all end at the same
    column."""
    length = max(part.length for part in parts)
    cache = BatchCache(parts[0].cache.config, max(capacity, length))
    rows = [part.rows for part in parts]
    for layer, *sources in zip(cache.layers, *(part.cache.layers for part in parts), strict=True):
        if isinstance(layer, _BatchLayer):
            used = [source.used() for source in sources]
            layer.keys = _stack([keys for keys, _ in used], parts, length, layer.capacity)
            layer.values = _stack([values for _, values in used], parts, length, layer.capacity)
            layer.length = length
            layer.is_initialized = True
        if isinstance(layer, _StateLayer):
            layer.take(sources, rows)
    return cache


def _stack(sources: Sequence[torch.Tensor], parts: Sequence[Part], length: int, capacity: int) -> torch.Tensor:
    target = _buffer(sources[0], sum(len(part.rows) for part in parts), capacity)
    first = 0
    for source, part in zip(sources, parts, strict=True):
        last = first + len(part.rows)
        target[first:last, :, length - part.length : length] = source[:, :, part.trim :][part.rows]
        first = last
    return target


def _widened(source: torch.Tensor, length: int, capacity: int) -> torch.Tensor:
    target = _buffer(source, source.shape[0], capacity)
    target[:, :, :length] = source[:, :, :length]
    return target


def _buffer(like: torch.Tensor, num_rows: int, capacity: int) -> torch.Tensor:
    # Zeros, not empty: a masked column still enters the attention with weight 0, and 0 * NaN is NaN.
    return like.new_zeros(num_rows, like.shape[1], capacity, like.shape[3])


# The forward passes of a batch: prompts and single tokens of a Hugging Face causal language model, left padded.


class Decoder:
    """Knows positions and masks, and nothing of requests or sampling."""

    def __init__(self, model: PreTrainedModel, tells_routes: bool = False, vision: VisionModel | None = None):
        """`vision`: of a model that sees."""
        use_decode_attention(model)
        self.vision = vision
        self._replay = RouterReplay(model) if tells_routes else None
        config = model.config.get_text_config()
        self.device = model.device
        self.vocab_size: int = config.vocab_size
        self._model = model
        self._config = config
        looks_both_ways = vision is not None and vision.facts.looks_both_ways
        self._own_masks = _attends_fully(model) and not looks_both_ways

    def routes(self) -> np.ndarray | None:
        """The experts of all tokens of the last pass, one after the other, int16 [tokens, layers, k]; None: nobody
        asked for them."""
        return None if self._replay is None else self._replay.reported().cpu().numpy()

    def tensor(self, array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(array).to(self.device)

    def prefill(self, sequences: Sequence[np.ndarray], media: Sequence[Media] = ()) -> tuple[Any, torch.Tensor]:
        """Keys, values and states of these tokens, left padded, and the logits [G, V] after each sequence. `media`:
        what each shows, where some show anything."""
        lengths = np.array([len(sequence) for sequence in sequences])
        width = int(lengths.max())
        starts = width - lengths
        ids = np.zeros((len(sequences), width), np.int64)
        for row, sequence in enumerate(sequences):
            ids[row, starts[row] :] = sequence
        columns = np.arange(width)
        positions = np.maximum(columns - starts[:, None], 0)
        pictures: dict[str, torch.Tensor] = {}
        if shown := list(pictures_of(media)):
            assert self.vision is not None
            pictures = tensors(shown, self.vision, self.device)
            if self.vision.has_grid:
                positions = np.stack([positions] * 3)
                for row, of_row in enumerate(media):
                    positions[:, row, starts[row] :] = positions_of(lengths[row], of_row, self.vision)
            if self.vision.facts.looks_both_ways:
                is_picture = np.zeros((len(sequences), width), np.int64)
                for row, of_row in enumerate(media):
                    for each in of_row:
                        is_picture[row, starts[row] + each.start : starts[row] + each.end] = 1
                pictures["token_type_ids"] = self.tensor(is_picture)
        mask = None
        cache = BatchCache(self._config, width)
        if starts.any():
            visible = self.tensor(columns >= starts[:, None])
            mask = self._causal_mask(visible) if self._own_masks else visible
            cache.hide(~visible)
        logits = self._forward(self.tensor(ids), mask, self.tensor(positions), cache, **pictures)
        cache.hide(None)
        return cache, logits

    def decode(
        self,
        ids: torch.Tensor,
        positions: torch.Tensor,
        cache: Any,
        starts: np.ndarray,
        mask: torch.Tensor | None,
    ) -> torch.Tensor:
        """Logits [B, V] after one more token per row. `mask` is `decode_mask` of the same starts, with columns
        enough."""
        end = cache.length + 1
        if self._own_masks:
            mask = None if mask is None else mask[..., :end]
        else:
            mask = self.tensor(np.arange(end) >= starts[:, None])
        return self._forward(ids, mask, positions, cache)

    def assemble(self, parts: Sequence[Part], capacity: int) -> Any:
        """A cache of these rows, with room for so many columns."""
        return assemble(parts, capacity)

    def decode_mask(self, starts: np.ndarray, num_columns: int) -> torch.Tensor | None:
        """Additive [B, 1, 1, columns] over padding before `starts`, kept between steps; None where none is needed, or
        where the model builds its own masks."""
        if not self._own_masks or not starts.any():
            return None
        return self._additive(self.tensor(np.arange(num_columns) >= starts[:, None])[:, None, None])

    def _forward(
        self,
        ids: torch.Tensor,
        mask: torch.Tensor | None,
        positions: torch.Tensor,
        cache: BatchCache,
        **pictures: torch.Tensor,
    ) -> torch.Tensor:
        outputs = self._model(
            input_ids=ids,
            attention_mask=mask,
            position_ids=positions,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
            **pictures,
        )
        return outputs.logits[:, -1]

    def _causal_mask(self, visible: torch.Tensor) -> torch.Tensor:
        """Additive [G, 1, T, T]. A padding position sees itself, because a row of nothing but -inf is not a number."""
        width = visible.shape[1]
        causal = torch.ones(width, width, dtype=torch.bool, device=self.device).tril()
        itself = torch.eye(width, dtype=torch.bool, device=self.device)
        return self._additive(((causal & visible[:, None]) | itself)[:, None])

    def _additive(self, allowed: torch.Tensor) -> torch.Tensor:
        mask = torch.zeros(allowed.shape, dtype=self._model.dtype, device=self.device)
        return mask.masked_fill_(~allowed, torch.finfo(self._model.dtype).min)


def _attends_fully(model: PreTrainedModel) -> bool:
    """True if every layer sees all earlier tokens, so that one mask serves all layers and can be kept between steps.
    Otherwise the model builds its own masks at every step. StrategyError for a model that padding or a cache would make
    another one."""
    config = model.config.get_text_config()
    if why_not := unsampled(config.to_dict()):
        raise StrategyError(
            f"hf_infer cannot sample from a {config.model_type} model with {why_not}: use vllm or sglang"
        )
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    takes_4d = config._attn_implementation in ("sdpa", "eager", DECODE_ATTENTION)
    return takes_4d and kinds == {"full_attention"} and not getattr(config, "sliding_window", None)
