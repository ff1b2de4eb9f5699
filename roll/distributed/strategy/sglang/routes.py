"""The experts that SGLang says tokens went to."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from roll.configs.sections.model import ModelArgs
from roll.errors import StrategyError


@dataclass(frozen=True)
class ToldRoutes:
    """How they come: of every token of prompt and answer but the last, and of every layer, also of those that have no
    experts, `top_k` numbers of four bytes, in base64. `mixtures`: the layers that have experts."""

    num_layers: int
    top_k: int
    mixtures: tuple[int, ...]

    @classmethod
    def of(cls, args: ModelArgs) -> ToldRoutes:
        """The routes' shape for the role's model, which is built without weights."""
        from roll.models.loading import load_model
        from roll.models.routers import mixture_layers

        model = load_model(args, "lm", empty=True).pretrained
        text = model.config.get_text_config()
        return cls(text.num_hidden_layers, text.num_experts_per_tok, mixture_layers(model))

    def read(self, meta: Mapping[str, Any]) -> np.ndarray | None:
        """int16 [tokens, layers with experts, k]; None of an answer that was cut short before it had any."""
        told = meta.get("routed_experts")
        if told is None:
            return None
        numbers = np.frombuffer(base64.b64decode(told), np.int32).reshape(-1, self.num_layers, self.top_k)
        chosen = numbers[:, list(self.mixtures)]
        if chosen.size and chosen.min() < 0:
            raise StrategyError("sglang does not report the experts of all tokens of a response")
        return chosen.astype(np.int16)
