"""`strategy_config` of megatron_train and megatron_infer: the keys, and what follows from them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BeforeValidator, model_validator

from roll.configs.base import Settings, setting
from roll.configs.sections.data import split_text

Modules = Annotated[tuple[str, ...] | None, BeforeValidator(lambda value: value and split_text(value))]


class MegatronSettings(Settings):
    """The keys with a meaning of their own here. Others that TransformerConfig has (`PASSED_ON`) go to it as they
    are."""

    tensor_model_parallel_size: int = setting(1, "Ranks that share every layer's matrices.", ge=1)
    pipeline_model_parallel_size: int = setting(1, "Ranks that share the layers, one run of them each.", ge=1)
    virtual_pipeline_model_parallel_size: int | None = setting(
        None, "Runs of layers per pipeline rank; more of them shorten the pipeline's idle time.", ge=1
    )
    context_parallel_size: int = setting(1, "Ranks that share every sequence.", ge=1)
    expert_model_parallel_size: int = setting(1, "Ranks that share the experts of a mixture.", ge=1)
    expert_tensor_parallel_size: int | None = setting(
        None,
        "Ranks that share an expert's matrices. None: 1 with expert parallel, else tensor_model_parallel_size.",
        ge=1,
    )
    account_for_embedding_in_pipeline_split: bool = setting(
        False, "Count the embedding as a layer of the first stage, which then has one less than the others."
    )
    account_for_loss_in_pipeline_split: bool = setting(
        False, "Count the output layer and the loss as a layer of the last stage, likewise."
    )
    num_layers_in_first_pipeline_stage: int | None = setting(
        None, "Layers of the first stage; the stages without a number of their own share the rest evenly.", ge=1
    )
    num_layers_in_last_pipeline_stage: int | None = setting(None, "Layers of the last stage, likewise.", ge=1)
    sequence_parallel: bool = setting(
        False,
        "Also share what is between the matrices, by position. Off without tensor parallel; on where tensor parallel "
        "meets experts.",
    )
    use_distributed_optimizer: bool = setting(
        False, "Share optimizer state and fp32 weights among data-parallel ranks."
    )
    overlap_grad_reduce: bool = setting(False, "Sum gradients over the ranks during the backward pass.")
    overlap_param_gather: bool = setting(False, "Gather updated weights while the next forward pass begins.")
    bucket_size: int | None = setting(None, "Parameters in one gradient reduction. None: Megatron's choice.", ge=1)
    recompute_granularity: Literal["full", "selective"] | None = setting(
        None,
        "full: recompute whole layers; selective: recompute_modules only. None: full, unless "
        "model_args.disable_gradient_checkpointing is true.",
    )
    recompute_method: Literal["uniform", "block"] | None = setting(
        None,
        "With full: uniform (default) recomputes every run of recompute_num_layers, block only the first of a stage.",
    )
    recompute_num_layers: int | None = setting(None, "With full: see recompute_method. Default 1.", ge=1)
    recompute_modules: Modules = setting(None, "With selective: what is recomputed. Default: core_attn.")
    moe_layer_recompute: bool = setting(
        False, "Recompute mixture layers. Not together with recompute_granularity: full."
    )
    moe_token_dispatcher_type: Literal["allgather", "alltoall"] = setting(
        "alltoall", "How tokens travel to their experts."
    )
    moe_grouped_gemm: bool = setting(
        False,
        "All experts of a rank in one matrix product, torch's or (transformer_impl) transformer-engine's.",
    )
    moe_shared_expert_overlap: bool = setting(False, "Compute shared experts while tokens travel. Needs alltoall.")
    bias_activation_fusion: bool = setting(False, "Megatron's fused kernel for bias and activation.")
    bias_swiglu_fusion: bool = setting(False, "The same for SwiGLU; Megatron has one switch for both.")
    bias_dropout_fusion: bool = setting(False, "Megatron's fused kernel for bias, dropout and addition.")
    apply_rope_fusion: bool = setting(False, "transformer-engine's fused rotary embedding.")
    masked_softmax_fusion: bool = setting(
        False, "Megatron's fused softmax; attention here is torch's own kernel instead."
    )
    gradient_accumulation_fusion: bool = setting(
        False, "Add weight gradients in the matrix product, of transformer-engine."
    )
    transformer_impl: Literal["local", "transformer_engine"] = setting(
        "local",
        "Whose layers: Megatron's own, or NVIDIA's package transformer-engine (GPUs only). Default: transformer_engine "
        "with apply_rope_fusion or gradient_accumulation_fusion, else local.",
    )
    variable_seq_lengths: bool | None = setting(
        None,
        "Let micro batches of a pipeline differ in shape (else they are padded). None: where the dispatcher allows it.",
    )

    @model_validator(mode="before")
    @classmethod
    def _derive(cls, tree: Any) -> Any:
        return derived(tree)[0] if isinstance(tree, Mapping) else tree

    @property
    def layers_to_split(self) -> int:
        """Number of layers that the pipeline's stages share beside the model's own."""
        return self.account_for_embedding_in_pipeline_split + self.account_for_loss_in_pipeline_split

    def stage_layers(self, num_layers: int) -> tuple[int, ...] | None:
        """Layers of every pipeline stage, or None if they cannot be divided so.

        Example: 10 layers over 4 stages, 3 in the first: None, 7 over 3 do not go; 4 in the first: 4, 2, 2, 2.
        """
        stages = self.pipeline_model_parallel_size
        first, last = self.num_layers_in_first_pipeline_stage, self.num_layers_in_last_pipeline_stage
        even = stages - (first is not None) - (last is not None)
        remaining = num_layers + self.layers_to_split - (first or 0) - (last or 0)
        if remaining < even or (remaining % even if even else remaining):
            return None
        per_stage = [remaining // even if even else 0] * stages
        per_stage[0] = first or per_stage[0] - self.account_for_embedding_in_pipeline_split
        per_stage[-1] = last or per_stage[-1] - self.account_for_loss_in_pipeline_split
        return tuple(per_stage)

    @property
    def expert_tensor_size(self) -> int:
        """expert_tensor_parallel_size as it applies."""
        if self.expert_tensor_parallel_size is not None:
            return self.expert_tensor_parallel_size
        return 1 if self.expert_model_parallel_size > 1 else self.tensor_model_parallel_size


def derived(tree: Mapping[str, Any]) -> tuple[dict[str, Any], list[tuple[str, str]]]:
    """The settings with what follows from others, and what that changes of what was written: (key, reason)."""
    filled, changes = dict(tree), []
    tensor, experts = (filled.get(f"{kind}_model_parallel_size") or 1 for kind in ("tensor", "expert"))
    if filled.get("transformer_impl") is None and any(filled.get(key) is True for key in ENGINE_KEYS):
        filled["transformer_impl"] = "transformer_engine"
    if filled.get("sequence_parallel") is True and tensor == 1:
        filled["sequence_parallel"] = False
        changes.append(("sequence_parallel", "is off: tensor_model_parallel_size is 1."))
    elif tensor != 1 and experts != 1 and filled.get("sequence_parallel") in (None, False):
        filled["sequence_parallel"] = True
        changes.append(("sequence_parallel", "is on: with tensor parallel Megatron cannot train experts without it."))
    if filled.get("masked_softmax_fusion") is True:
        filled["masked_softmax_fusion"] = False
        changes.append(("masked_softmax_fusion", "has no effect: attention is one fused kernel anyway."))
    return filled, changes


def opened(config: Mapping[str, Any]) -> dict[str, Any]:
    """A strategy_config whose additional_configs, ROLL's place for TransformerConfig's keys, stand among the others."""
    inner = config.get("additional_configs")
    if not isinstance(inner, Mapping):
        return dict(config)
    return {key: value for key, value in config.items() if key != "additional_configs"} | dict(inner)


_TABLES: Mapping[str, Any] = yaml.safe_load(
    Path(__file__).with_name("trainer_arguments.yaml").read_text(encoding="utf-8")
)["megatron"]
PASSED_ON = frozenset[str](_TABLES["passed_on"].split())
LOCAL_VALUES: Mapping[str, tuple[object, str]] = {key: tuple(row) for key, row in _TABLES["local_values"].items()}
SET_ELSEWHERE: Mapping[str, str] = _TABLES["set_elsewhere"]
UNUSED: Mapping[str, str] = _TABLES["unused"]
NOT_HERE: Mapping[str, str] = _TABLES["not_here"]
ENGINE_KEYS = ("apply_rope_fusion", "gradient_accumulation_fusion")
KNOWN = frozenset(MegatronSettings.model_fields) | PASSED_ON | frozenset(SET_ELSEWHERE) | frozenset(UNUSED)


def split_settings(config: Mapping[str, Any]) -> tuple[MegatronSettings, dict[str, Any]]:
    """A checked strategy_config: our keys, and what is passed on to TransformerConfig."""
    config = opened(config)
    known = {key: value for key, value in config.items() if key in MegatronSettings.model_fields}
    return MegatronSettings.model_validate(known), {key: value for key, value in config.items() if key in PASSED_ON}
