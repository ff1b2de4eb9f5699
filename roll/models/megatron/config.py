"""config.json and strategy_config to Megatron's TransformerConfig."""

import logging
from dataclasses import dataclass
from typing import Any

import torch
from megatron.core.transformer.transformer_config import MLATransformerConfig, TransformerConfig
from torch.nn import functional
from transformers import PretrainedConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from roll.configs.strategies.megatron_checks import ModelFacts, sizes_problems
from roll.configs.strategies.megatron_config import MegatronSettings
from roll.errors import StrategyError
from roll.models.megatron.family import Family, Shapes

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Numbers:
    """Device and number format of a model.

    - `recompute`: whether activations are recomputed if no other setting says so
    - `trains_aux_loss`: whether the load-balancing loss of a mixture is trained
    """

    dtype: torch.dtype
    device: torch.device
    recompute: bool = False
    trains_aux_loss: bool = False


@dataclass(frozen=True)
class Rope:
    """Rotary embedding as config.json wants it: one frequency per pair of channels, and a factor on both sides'
    vectors."""

    frequencies: torch.Tensor
    factor: float


def shapes_of(config: PretrainedConfig) -> Shapes:
    heads = config.num_attention_heads
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    return Shapes(heads, kv_heads, getattr(config, "head_dim", None) or config.hidden_size // heads, config.vocab_size)


def check_sizes(config: PretrainedConfig, settings: MegatronSettings) -> None:
    """StrategyError for parallel sizes that do not divide the model, with the nearest that do."""
    facts = ModelFacts.of(config.to_dict())
    assert facts is not None, "every family has heads and layers"
    problems = [problem.text for problem in sizes_problems("strategy_config", settings, facts)]
    if problems:
        raise StrategyError(" ".join(problems))


def rope_of(config: PretrainedConfig) -> Rope:
    """The frequencies transformers itself uses."""
    parameters = getattr(config, "rope_parameters", None) or {}
    kind = parameters.get("rope_type", "default")
    if kind == "default":
        dim = int(shapes_of(config).head_dim * parameters.get("partial_rotary_factor", 1.0))
        exponents = torch.arange(0, dim, 2, dtype=torch.int64).float() / dim
        return Rope(1.0 / float(parameters.get("rope_theta", 10000.0)) ** exponents, 1.0)
    frequencies, factor = ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"))
    return Rope(frequencies, float(factor))


def transformer_config(
    config: PretrainedConfig, family: Family, settings: MegatronSettings, passed_on: dict[str, Any], numbers: Numbers
) -> TransformerConfig:
    """The settings of one rank's part of the model. StrategyError carries what Megatron itself refuses."""
    shapes = shapes_of(config)
    values: dict[str, Any] = {
        "num_layers": config.num_hidden_layers,
        "hidden_size": config.hidden_size,
        "ffn_hidden_size": config.intermediate_size,
        "num_attention_heads": shapes.num_heads,
        "num_query_groups": shapes.num_kv_heads,
        "kv_channels": shapes.head_dim,
        "softmax_scale": rope_of(config).factor ** 2 / shapes.head_dim**0.5,
        "normalization": "RMSNorm",
        "layernorm_epsilon": config.rms_norm_eps,
        "gated_linear_unit": True,
        "activation_func": functional.silu,
        "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
        "bias_activation_fusion": settings.bias_activation_fusion or settings.bias_swiglu_fusion,
        "bias_dropout_fusion": settings.bias_dropout_fusion,
        "masked_softmax_fusion": False,
        "apply_rope_fusion": settings.apply_rope_fusion,
        "gradient_accumulation_fusion": settings.gradient_accumulation_fusion,
        "persist_layer_norm": False,
        "params_dtype": numbers.dtype,
        "pipeline_dtype": numbers.dtype,
        "bf16": numbers.dtype is torch.bfloat16,
        # Without it tensor-parallel parameters are not marked as such, and the gradient norm counts some twice.
        "perform_initialization": True,
        "use_cpu_initialization": numbers.device.type == "cpu",
        # Gradients are summed over ranks and micro batches, not averaged: the loss divides by global counts itself.
        "calculate_per_token_loss": True,
        "transformer_impl": settings.transformer_impl,
    }
    values |= (
        _parallel(settings)
        | _recompute(settings, numbers)
        | _mixture(settings, numbers)
        | family.settings(config)
        | passed_on
    )
    if values.get("num_moe_experts") and settings.tensor_model_parallel_size > 1 and not settings.sequence_parallel:
        logger.warning("sequence_parallel is on: with tensor parallel Megatron cannot train experts without it.")
        values["sequence_parallel"] = True
    kind = MLATransformerConfig if values.get("multi_latent_attention") else TransformerConfig
    try:
        return kind(**values)
    except (ValueError, AssertionError) as error:
        raise StrategyError(f"megatron refuses these settings: {error}") from error


def _parallel(s: MegatronSettings) -> dict[str, Any]:
    stages = s.virtual_pipeline_model_parallel_size or 1
    interleaved = stages > 1
    return {
        "tensor_model_parallel_size": s.tensor_model_parallel_size,
        "pipeline_model_parallel_size": s.pipeline_model_parallel_size,
        "virtual_pipeline_model_parallel_size": stages if interleaved else None,
        "context_parallel_size": s.context_parallel_size,
        "expert_model_parallel_size": s.expert_model_parallel_size,
        "expert_tensor_parallel_size": s.expert_tensor_size,
        "account_for_embedding_in_pipeline_split": s.account_for_embedding_in_pipeline_split,
        "account_for_loss_in_pipeline_split": s.account_for_loss_in_pipeline_split,
        "num_layers_in_first_pipeline_stage": s.num_layers_in_first_pipeline_stage,
        "num_layers_in_last_pipeline_stage": s.num_layers_in_last_pipeline_stage,
        "sequence_parallel": s.sequence_parallel,
        # Sends and receives in one batch wait for each other for ever on an interleaved pipeline of two ranks.
        "overlap_p2p_comm": interleaved,
        "batch_p2p_comm": not interleaved,
        "variable_seq_lengths": shapes_vary(s),
    }


def shapes_vary(s: MegatronSettings) -> bool:
    """Whether micro batches of a pipeline may differ in shape. Otherwise they are padded to the largest."""
    if s.variable_seq_lengths is not None:
        return s.variable_seq_lengths
    return s.pipeline_model_parallel_size > 1 and s.moe_token_dispatcher_type == "alltoall"


def _recompute(s: MegatronSettings, numbers: Numbers) -> dict[str, Any]:
    granularity = s.recompute_granularity
    if granularity is None and numbers.recompute and not s.moe_layer_recompute:
        granularity = "full"
    values: dict[str, Any] = {"recompute_granularity": granularity, "moe_layer_recompute": s.moe_layer_recompute}
    if granularity == "full":
        values |= {
            "recompute_method": s.recompute_method or "uniform",
            "recompute_num_layers": s.recompute_num_layers or 1,
        }
    if s.recompute_modules is not None:
        values["recompute_modules"] = list(s.recompute_modules)
    return values


def _mixture(s: MegatronSettings, numbers: Numbers) -> dict[str, Any]:
    return {
        "moe_token_dispatcher_type": s.moe_token_dispatcher_type,
        "moe_grouped_gemm": s.moe_grouped_gemm,
        "moe_shared_expert_overlap": s.moe_shared_expert_overlap,
        "moe_router_load_balancing_type": "aux_loss" if numbers.trains_aux_loss else "none",
        "moe_aux_loss_coeff": 0.0,  # each update sets its own
        "moe_router_dtype": "fp32",
    }
