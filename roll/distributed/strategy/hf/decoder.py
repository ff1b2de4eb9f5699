"""The forward passes of a batch: prompts and single tokens of a Hugging Face causal language model, left padded."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from transformers import PreTrainedModel

from roll.configs.strategies.model_numbers import unsampled
from roll.distributed.strategy.hf.attention import DECODE_ATTENTION, use_decode_attention
from roll.distributed.strategy.hf.kv_cache import BatchCache
from roll.errors import StrategyError
from roll.models.router_replay import RouterReplay


class Decoder:
    """Knows positions and masks, and nothing of requests or sampling."""

    def __init__(self, model: PreTrainedModel, tells_routes: bool = False):
        use_decode_attention(model)
        self._replay = RouterReplay(model) if tells_routes else None
        config = model.config.get_text_config()
        self.device = model.device
        self.vocab_size: int = config.vocab_size
        self._model = model
        self._num_layers: int = config.num_hidden_layers
        self._own_masks = _attends_fully(model)

    def routes(self) -> np.ndarray | None:
        """The experts of all tokens of the last pass, one after the other, int16 [tokens, layers, k]; None: nobody
        asked for them."""
        return None if self._replay is None else self._replay.told().cpu().numpy()

    def tensor(self, array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(array).to(self.device)

    def prefill(self, sequences: Sequence[np.ndarray]) -> tuple[BatchCache, torch.Tensor]:
        """Keys and values of these tokens, left padded, and the logits [G, V] after each sequence."""
        lengths = np.array([len(sequence) for sequence in sequences])
        width = int(lengths.max())
        starts = width - lengths
        ids = np.zeros((len(sequences), width), np.int64)
        for row, sequence in enumerate(sequences):
            ids[row, starts[row] :] = sequence
        columns = np.arange(width)
        positions = np.maximum(columns - starts[:, None], 0)
        mask = None
        if starts.any():
            visible = self.tensor(columns >= starts[:, None])
            mask = self._causal_mask(visible) if self._own_masks else visible
        cache = BatchCache(self._num_layers, width)
        return cache, self._forward(self.tensor(ids), mask, self.tensor(positions), cache)

    def decode(
        self,
        ids: torch.Tensor,
        positions: torch.Tensor,
        cache: BatchCache,
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

    def decode_mask(self, starts: np.ndarray, num_columns: int) -> torch.Tensor | None:
        """Additive [B, 1, 1, columns] over padding before `starts`, kept between steps; None where none is needed, or
        where the model builds its own masks."""
        if not self._own_masks or not starts.any():
            return None
        return self._additive(self.tensor(np.arange(num_columns) >= starts[:, None])[:, None, None])

    def _forward(
        self, ids: torch.Tensor, mask: torch.Tensor | None, positions: torch.Tensor, cache: BatchCache
    ) -> torch.Tensor:
        outputs = self._model(
            input_ids=ids,
            attention_mask=mask,
            position_ids=positions,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
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
