"""`strategy_config` of megatron_train and megatron_infer: the keys, what contradicts what, and the nearest that
works."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ValidationError, model_validator

from roll.configs.base import Settings, setting
from roll.configs.data import split_text
from roll.configs.problems import Problem, did_you_mean, show
from roll.utils.imports import is_installed

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
    sequence_parallel: bool = setting(
        False,
        "Also share what is between the matrices, by position. Off without tensor parallel; on where tensor parallel "
        "meets experts.",
    )
    use_distributed_optimizer: bool = setting(
        False, "Share optimizer state and fp32 weights among data-parallel ranks."
    )
    overlap_grad_reduce: bool = setting(False, "Sum gradients over the ranks while the backward pass goes on.")
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
    moe_grouped_gemm: bool = setting(False, "All experts of a rank in one matrix product, of transformer-engine.")
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
        "with moe_grouped_gemm, apply_rope_fusion or gradient_accumulation_fusion, else local.",
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
        """What the pipeline's stages share beside the model's layers, in layers."""
        return self.account_for_embedding_in_pipeline_split + self.account_for_loss_in_pipeline_split

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
        changes.append(("sequence_parallel", "is on: Megatron trains experts with tensor parallel only so."))
    if filled.get("masked_softmax_fusion") is True:
        filled["masked_softmax_fusion"] = False
        changes.append(("masked_softmax_fusion", "has no effect: attention is one fused kernel anyway."))
    return filled, changes


def megatron_warnings(at: str, config: Mapping[str, Any]) -> Iterator[str]:
    """What is taken otherwise than it is written. `at` is the YAML path of strategy_config."""
    config = opened(config)
    yield from (f"{at}.{key} {reason}" for key, reason in derived(config)[1])
    yield from (f"{at}.{key} does nothing here: {IDLE[key]}." for key in config if key in IDLE)


def opened(config: Mapping[str, Any]) -> dict[str, Any]:
    """A strategy_config whose additional_configs, ROLL's place for TransformerConfig's keys, stand among the others."""
    inner = config.get("additional_configs")
    if not isinstance(inner, Mapping):
        return dict(config)
    return {key: value for key, value in config.items() if key != "additional_configs"} | inner


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# TransformerConfig (megatron-core 0.16) keys that change no shape and no meaning of the model: passed on unchecked.
PASSED_ON = _words(
    """
    attention_dropout hidden_dropout attention_softmax_in_fp32 fp32_residual_connection apply_query_key_layer_scaling
    disable_bf16_reduced_precision_matmul deterministic_mode batch_invariant_mode
    persist_layer_norm memory_efficient_layer_norm use_fused_weighted_squared_relu
    distribute_saved_activations deallocate_pipeline_outputs cp_comm_type
    microbatch_group_size_per_vp_stage
    moe_router_dtype moe_permute_fusion moe_router_fusion
    tp_comm_overlap tp_comm_overlap_ag tp_comm_overlap_rs tp_comm_overlap_rs_dgrad tp_comm_bulk_wgrad tp_comm_bulk_dgrad
    """
)
# Of these, what Megatron's own layers ignore or fail with: the one value that holds for them, and why.
LOCAL_VALUES: Mapping[str, tuple[object, str]] = {
    "fp32_residual_connection": (False, "these layers take their input in model_args.dtype"),
    "apply_query_key_layer_scaling": (False, "attention is one fused kernel"),
    "attention_softmax_in_fp32": (True, "attention is one fused kernel, whose softmax is fp32"),
    "memory_efficient_layer_norm": (False, "the norm is torch's own"),
    "persist_layer_norm": (False, "the norm is torch's own"),
    "cp_comm_type": (None, "keys and values are gathered over the context-parallel ranks"),
    "tp_comm_overlap": (False, "only transformer-engine's matrices overlap with sends"),
}
ENGINE_KEYS = ("moe_grouped_gemm", "apply_rope_fusion", "gradient_accumulation_fusion")
# Keys that exist, and whose value comes from elsewhere: written here it must be the same.
SET_ELSEWHERE = {
    "bf16": "model_args.dtype",
    "fp16": "model_args.dtype",
    "params_dtype": "model_args.dtype",
    "lr": "training_args.learning_rate",
    "weight_decay": "training_args.weight_decay",
    "clip_grad": "max_grad_norm",
    "max_grad_norm": "max_grad_norm",
    "micro_batch_size": "training_args.per_device_train_batch_size",
    "global_batch_size": "per_device_train_batch_size x gradient_accumulation_steps x data-parallel ranks",
    "seq_length": "the rows themselves",
    "num_layers": "the model's config.json",
    "hidden_size": "the model's config.json",
    "num_attention_heads": "the model's config.json",
    "num_query_groups": "the model's config.json",
    "ffn_hidden_size": "the model's config.json",
    "num_moe_experts": "the model's config.json",
}
# Keys of ROLL's for what is decided otherwise here.
IDLE: Mapping[str, str] = {
    "overlap_p2p_comm": "an interleaved pipeline overlaps its sends, any other does not",
    "calculate_per_token_loss": "the loss is normalised by the counts of the whole update",
    "cross_entropy_loss_fusion": "log-probs and entropy have code of their own here",
    "use_flash_attn": "attention is the fused kernel of torch, or of transformer-engine",
}
KNOWN = frozenset(MegatronSettings.model_fields) | PASSED_ON | frozenset(SET_ELSEWHERE) | frozenset(IDLE)


@dataclass(frozen=True)
class ModelFacts:
    """What parallel sizes must divide. A width of 0: the model has no such matrices."""

    num_heads: int
    num_kv_heads: int
    num_layers: int
    num_experts: int = 0
    ffn_width: int = 0
    expert_width: int = 0

    @classmethod
    def of(cls, model: Mapping[str, Any]) -> "ModelFacts | None":
        """Of a config.json; None where it does not say."""
        heads, layers = model.get("num_attention_heads"), model.get("num_hidden_layers")
        if type(heads) is not int or type(layers) is not int:
            return None
        experts = model.get("num_experts") or model.get("num_local_experts") or 0
        width = model.get("intermediate_size") or 0
        return cls(
            num_heads=heads,
            num_kv_heads=model.get("num_key_value_heads") or heads,
            num_layers=layers,
            num_experts=experts,
            ffn_width=0 if experts else width,
            expert_width=(model.get("moe_intermediate_size") or width) if experts else 0,
        )


def split_settings(config: Mapping[str, Any]) -> tuple[MegatronSettings, dict[str, Any]]:
    """A checked strategy_config: our keys, and what is passed on to TransformerConfig."""
    config = opened(config)
    own = {key: value for key, value in config.items() if key in MegatronSettings.model_fields}
    return MegatronSettings.model_validate(own), {key: value for key, value in config.items() if key in PASSED_ON}


def repeated_problems(at: str, config: Mapping[str, Any], values: Mapping[str, object]) -> Iterator[Problem]:
    """Keys that repeat what is set elsewhere and do not agree with it. `values` are those the configuration knows."""
    for key, given in opened(config).items():
        if key not in SET_ELSEWHERE or given is None or (key in values and given == values[key]):
            continue
        known = f" ({show(values[key])}), which {show(given)} contradicts" if key in values else ""
        yield Problem(f"{at}.{key}: set by {SET_ELSEWHERE[key]}{known}. Remove it.", (f"{at}.{key}",))


def megatron_problems(at: str, config: Mapping[str, Any]) -> Iterator[Problem]:
    """Unknown keys, wrong values, and settings that contradict each other. `at` is the YAML path of strategy_config."""
    for key in opened(config):
        if key not in KNOWN:
            yield Problem(
                f"{at}.{key}: Megatron has no such key here.{did_you_mean(str(key), KNOWN)}", (f"{at}.{key}",)
            )
    try:
        settings, passed_on = split_settings(config)
    except ValidationError as error:
        for item in error.errors(include_url=False):
            path = ".".join((at, *map(str, item["loc"])))
            yield Problem(f"{path}: {show(item['input'])}: {item['msg'].lower()}.", (path,))
        return
    for key, text in (*_contradictions(settings), *_unknown_to_local(settings, passed_on)):
        yield Problem(f"{at}.{key}: {text}", (f"{at}.{key}",))


def _contradictions(s: MegatronSettings) -> Iterator[tuple[str, str]]:
    if (s.virtual_pipeline_model_parallel_size or 1) > 1 and s.pipeline_model_parallel_size == 1:
        yield "virtual_pipeline_model_parallel_size", "needs pipeline_model_parallel_size of 2 or more. Remove it."
    if s.overlap_param_gather and not (s.use_distributed_optimizer and s.overlap_grad_reduce):
        yield "overlap_param_gather", "needs use_distributed_optimizer: true and overlap_grad_reduce: true."
    if s.recompute_granularity != "full":
        for key in ("recompute_method", "recompute_num_layers"):
            if getattr(s, key) is not None:
                yield key, "needs recompute_granularity: full. Set that, or remove this."
    if s.recompute_modules is not None and s.recompute_granularity != "selective":
        yield "recompute_modules", "needs recompute_granularity: selective. Set that, or remove this."
    if s.moe_layer_recompute and s.recompute_granularity == "full":
        yield "moe_layer_recompute", "is contained in recompute_granularity: full. Remove one of them."
    if s.moe_shared_expert_overlap and s.moe_token_dispatcher_type != "alltoall":
        yield "moe_shared_expert_overlap", "needs moe_token_dispatcher_type: alltoall."
    if s.variable_seq_lengths and s.moe_token_dispatcher_type != "alltoall":
        yield (
            "variable_seq_lengths",
            "true is refused by Megatron with the allgather dispatcher. Use alltoall, or remove it.",
        )
    for key in ENGINE_KEYS:
        if getattr(s, key) and s.transformer_impl == "local":
            yield key, "true contradicts transformer_impl: local. Remove that, or set this to false."
    if s.layers_to_split and s.pipeline_model_parallel_size == 1:
        for key in ("account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split"):
            if getattr(s, key):
                yield key, "needs pipeline_model_parallel_size of 2 or more. Remove it."


def _unknown_to_local(s: MegatronSettings, passed_on: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for key, value in passed_on.items() if s.transformer_impl == "local" else ():
        if key in LOCAL_VALUES and value != LOCAL_VALUES[key][0]:
            yield key, f"{show(value)} cannot be used with transformer_impl: local: {LOCAL_VALUES[key][1]}. Remove it."


def ranks_problems(at: str, settings: MegatronSettings, num_ranks: int) -> Iterator[Problem]:
    """Expert parallel sizes that the ranks of a pipeline stage cannot be divided by."""
    s = settings
    inside = num_ranks // s.pipeline_model_parallel_size
    experts, tensor = s.expert_model_parallel_size, s.expert_tensor_size
    if (experts == 1 and s.expert_tensor_parallel_size is None) or inside % (experts * tensor) == 0:
        return
    if inside % tensor:
        yield _refuse(
            at, "expert_tensor_parallel_size", tensor,
            f"must divide the {inside} ranks of a pipeline stage", _divisors(inside),
        )  # fmt: skip
    else:
        yield _refuse(
            at, "expert_model_parallel_size", experts,
            f"x expert_tensor_parallel_size {tensor} must divide the {inside} ranks of a pipeline stage",
            _divisors(inside // tensor),
        )  # fmt: skip


def cpu_problems(at: str, settings: MegatronSettings) -> Iterator[Problem]:
    """What runs on GPUs only."""
    s = settings
    both = s.expert_model_parallel_size > 1 and s.expert_tensor_size > 1
    if both and s.moe_token_dispatcher_type == "alltoall":
        yield Problem(
            f"{at}.expert_tensor_parallel_size: {s.expert_tensor_size} with expert_model_parallel_size "
            f"{s.expert_model_parallel_size} and the alltoall dispatcher does not run on gloo, which CPUs use. Nearest "
            "that works: 1.",
            (f"{at}.expert_tensor_parallel_size",),
        )


def missing_packages(at: str, settings: MegatronSettings) -> Iterator[Problem]:
    """Packages that these settings need and that are not installed."""
    if settings.transformer_impl == "transformer_engine" and not is_installed("transformer_engine"):
        asking = [key for key in ENGINE_KEYS if getattr(settings, key)] or ["transformer_impl"]
        verb = "needs" if len(asking) == 1 else "need"
        yield Problem(
            f"{at}: {' and '.join(asking)} {verb} the package transformer-engine, which is not installed. Install it "
            'on a machine with CUDA: pip install "transformer-engine[pytorch]". Or do without: '
            f"{', '.join(f'{key}: {_WITHOUT[key]}' for key in asking)}.",
            tuple(f"{at}.{key}" for key in asking),
        )


_WITHOUT = {"transformer_impl": "local"} | dict.fromkeys(ENGINE_KEYS, "false")


def sizes_problems(at: str, settings: MegatronSettings, model: ModelFacts) -> Iterator[Problem]:
    """Parallel sizes that the model cannot be divided by, each with the nearest that works."""
    s = settings
    tensor, stages = "tensor_model_parallel_size", s.pipeline_model_parallel_size
    smallest = min(model.num_heads, model.num_kv_heads)
    both = [n for n in range(1, smallest + 1) if model.num_heads % n == 0 and model.num_kv_heads % n == 0]
    if s.tensor_model_parallel_size not in both:
        yield _refuse(
            at, tensor, s.tensor_model_parallel_size,
            f"must divide the model's {model.num_heads} heads and {model.num_kv_heads} key-value heads", both,
        )  # fmt: skip
    elif model.ffn_width % s.tensor_model_parallel_size:
        yield _refuse(
            at, tensor, s.tensor_model_parallel_size, f"must divide the model's MLP width of {model.ffn_width}",
            [n for n in both if model.ffn_width % n == 0],
        )  # fmt: skip
    if model.expert_width % s.expert_tensor_size:
        yield _refuse(
            at, "expert_tensor_parallel_size", s.expert_tensor_size,
            f"must divide the model's expert width of {model.expert_width}", _divisors(model.expert_width),
        )  # fmt: skip
    layers, virtual = model.num_layers + s.layers_to_split, s.virtual_pipeline_model_parallel_size or 1
    counted = f" (and {s.layers_to_split} for the account_for_ keys)" if s.layers_to_split else ""
    if layers % stages:
        yield _refuse(
            at, "pipeline_model_parallel_size", stages,
            f"must divide the model's {model.num_layers} layers{counted}", _divisors(layers),
        )  # fmt: skip
    elif layers // stages % virtual:
        yield _refuse(
            at, "virtual_pipeline_model_parallel_size", virtual,
            f"must divide the {layers // stages} layers{counted} of a pipeline rank", _divisors(layers // stages),
        )  # fmt: skip
    if not model.num_experts and s.expert_model_parallel_size > 1:
        yield _refuse(at, "expert_model_parallel_size", s.expert_model_parallel_size, "needs a model with experts", [1])
    if model.num_experts and model.num_experts % s.expert_model_parallel_size:
        yield _refuse(
            at, "expert_model_parallel_size", s.expert_model_parallel_size,
            f"must divide the model's {model.num_experts} experts", _divisors(model.num_experts),
        )  # fmt: skip


def _refuse(at: str, key: str, value: int, why: str, choices: list[int]) -> Problem:
    near = [n for n in choices if n < value][-1:] + [n for n in choices if n > value][:1]
    return Problem(f"{at}.{key}: {value} {why}. Nearest that works: {' or '.join(map(str, near))}.", (f"{at}.{key}",))


def _divisors(whole: int) -> list[int]:
    return [n for n in range(1, whole + 1) if whole % n == 0]
