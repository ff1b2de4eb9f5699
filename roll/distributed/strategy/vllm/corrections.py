"""Corrections of vLLM 0.32's own classes, in its worker processes, before they load a model."""

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from vllm.config import ModelConfig, VllmConfig
from vllm.model_executor.layers.activation import XIELU, get_act_fn
from vllm.model_executor.layers.fused_moe.routed_experts import RoutedExperts
from vllm.model_executor.layers.fused_moe.router.cpu_router import CPURouter
from vllm.model_executor.layers.linear import QKVParallelLinear, RowParallelLinear
from vllm.model_executor.layers.rotary_embedding.base import RotaryEmbedding
from vllm.model_executor.model_loader.weight_utils import default_weight_loader
from vllm.model_executor.models import phimoe
from vllm.model_executor.models.bloom import BloomMLP

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


def give_phimoe_its_biases() -> None:
    """Compute Phi-3.5-MoE with the biases of its config.json, and with its `router_jitter_noise`: vLLM leaves out the
    head's bias, adds biases to attention where the model has none (from memory that nothing filled), and lets experts
    compete within .01, whatever config.json says."""
    build: Any = phimoe.PhiMoEForCausalLM.__init__

    def init(self: phimoe.PhiMoEForCausalLM, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        build(self, vllm_config=vllm_config, prefix=prefix)
        config: Any = self.config
        if not config.lm_head_bias:
            self.lm_head.register_parameter("bias", None)
        if not config.attention_bias:
            for layer in self.modules():
                if isinstance(layer, QKVParallelLinear | RowParallelLinear):
                    layer.register_parameter("bias", None)
        phimoe.sparsemixer.__defaults__ = (config.router_jitter_noise,)  # type: ignore[attr-defined]

    def compute_logits(self: phimoe.PhiMoEForCausalLM, hidden_states: torch.Tensor) -> Any:
        return self.logits_processor(self.lm_head, hidden_states, self.lm_head.bias)

    phimoe.PhiMoEForCausalLM.__init__ = init
    phimoe.PhiMoEForCausalLM.compute_logits = compute_logits


def activate_bloom_as_trained() -> None:
    """Let BLOOM's layers use the GELU that its models were trained with, by a tanh: vLLM takes the exact one."""
    build: Any = BloomMLP.__init__

    def init(self: BloomMLP, *arguments: Any, **options: Any) -> None:
        build(self, *arguments, **options)
        self.gelu_impl = get_act_fn("gelu_pytorch_tanh")

    BloomMLP.__init__ = init


def size_latent_heads() -> None:
    """Let models with latent attention for which vLLM runs transformers' code tell the size of the heads that its
    latent attention has: vLLM takes `head_dim` of config.json, which is another, and no request would be computed."""
    size: Any = ModelConfig.get_head_size

    def get_head_size(self: ModelConfig) -> int:
        if self.using_transformers_backend() and self.use_mla:
            text: Any = self.hf_text_config
            return text.kv_lora_rank + text.qk_rope_head_dim
        return size(self)

    ModelConfig.get_head_size = get_head_size


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
