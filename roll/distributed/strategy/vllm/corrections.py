"""Corrections of vLLM 0.32's own classes, in its worker processes, before they load a model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from vllm.model_executor.layers.activation import XIELU
from vllm.model_executor.layers.fused_moe.routed_experts import RoutedExperts
from vllm.model_executor.layers.fused_moe.router.cpu_router import CPURouter
from vllm.model_executor.layers.rotary_embedding.base import RotaryEmbedding
from vllm.model_executor.model_loader.weight_utils import default_weight_loader

_CORRECTION = "e_score_correction_bias"
Weights = Iterable[tuple[str, torch.Tensor]]


def load_corrections_of_experts() -> None:
    """Load the router's correction where a checkpoint has it beside the experts, as Laguna's do: vLLM passes over it
    without a word, and routes with zeros."""
    load: Any = RoutedExperts.load_weights

    def load_weights(self: RoutedExperts, weights: Weights) -> Iterator[str]:
        corrections: list[torch.Tensor] = []

        def others() -> Iterator[tuple[str, torch.Tensor]]:
            for name, weight in weights:
                if name == _CORRECTION:
                    corrections.append(weight)
                else:
                    yield name, weight

        yield from load(self, others())
        for correction in corrections:
            parameter = self.get_parameter(_CORRECTION)
            getattr(parameter, "weight_loader", default_weight_loader)(parameter, correction)
            yield _CORRECTION

    RoutedExperts.load_weights = load_weights


def keep_activations_precise() -> None:
    """Hold the learned numbers of Apertus' activation in the model's dtype: vLLM holds them in bf16, also beside
    weights in fp32."""
    build: Any = XIELU.__init__

    def init(self: XIELU, *arguments: Any, **options: Any) -> None:
        build(self, *arguments, **options)
        self.to(torch.get_default_dtype())

    XIELU.__init__ = init


def turn_heads_on_cpus() -> None:
    """Let torch turn heads that have a dimension of their own, as those of DeepSeek, GLM-4.7-Flash and LFM2: vLLM's CPU
    kernel of rotary embeddings takes the dimension before the last for tokens."""
    turn: Any = RotaryEmbedding.forward_cpu

    def forward_cpu(
        self: RotaryEmbedding, positions: torch.Tensor, query: torch.Tensor, key: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        has_heads = query.dim() > 2 or (key is not None and key.dim() > 2)
        return self.forward_native(positions, query, key) if has_heads else turn(self, positions, query, key)

    RotaryEmbedding.forward_cpu = forward_cpu


def route_on_cpus() -> None:
    """Route by sigmoids and by corrections of experts on CPUs. vLLM's router there knows them for groups of experts
    alone: others fail (MiniMax-M2), or route without the correction (ERNIE 4.5). All experts in one group are the
    same."""
    route: Any = CPURouter._compute_routing

    def compute_routing(self: CPURouter, *arguments: Any, **options: Any) -> tuple[torch.Tensor, torch.Tensor]:
        is_plain = not self.use_grouped_topk and self.custom_routing_function is None
        is_corrected = self.scoring_func == "softmax" and self.e_score_correction_bias is not None
        if is_plain and (is_corrected or self.scoring_func == "sigmoid"):
            self.use_grouped_topk, self.num_expert_group, self.topk_group = True, 1, 1
        return route(self, *arguments, **options)

    CPURouter._compute_routing = compute_routing
