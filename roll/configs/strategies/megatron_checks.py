"""Checks of the settings of the megatron strategies, on any machine and on this one."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import gcd
from typing import Any

from pydantic import ValidationError

from roll.configs.problems import Problem, did_you_mean
from roll.configs.strategies.megatron_config import (
    ENGINE_KEYS,
    KNOWN,
    LOCAL_VALUES,
    NOT_HERE,
    SET_ELSEWHERE,
    UNUSED,
    MegatronSettings,
    derived,
    opened,
    split_settings,
)
from roll.configs.tables.families import EXPERTS, family_of
from roll.utils.imports import is_installed
from roll.utils.text import show

ENDS = ("num_layers_in_first_pipeline_stage", "num_layers_in_last_pipeline_stage")
ACCOUNTS = ("account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split")


@dataclass(frozen=True)
class ModelFacts:
    """Sizes of the model that parallel sizes must divide. A width of 0: the model has no such matrices. `ffn_width`: of
    dense layers and of experts that every token goes to; `latent_width`: of the matrices to the latents of attention.
    Where several differ, what divides all."""

    num_heads: int
    num_kv_heads: int
    num_layers: int
    num_experts: int = 0
    ffn_width: int = 0
    expert_width: int = 0
    latent_width: int = 0
    local_layers: str = ""  # what only Megatron's own layers have here
    has_expert_biases: bool = False

    @classmethod
    def of(cls, model: Mapping[str, Any]) -> "ModelFacts | None":
        """Facts from a config.json; None if numbers are missing or not whole."""
        heads, layers = model.get("num_attention_heads"), model.get("num_hidden_layers")
        if type(heads) is not int or type(layers) is not int:
            return None
        kv_heads = model.get("num_key_value_heads") or heads
        experts = next((model[key] for key in EXPERTS if model.get(key)), 0)
        width = model.get("intermediate_size") or 0
        expert_width = model.get("moe_intermediate_size") or width
        shared, num_shared = model.get("shared_expert_intermediate_size") or 0, model.get("n_shared_experts") or 0
        query, latent, key = (model.get(name) or 0 for name in ("q_lora_rank", "kv_lora_rank", "qk_rope_head_dim"))
        numbers = (kv_heads, experts, width, expert_width, shared, num_shared, query, latent, key)
        if not all(type(number) is int for number in numbers):
            return None
        family = family_of(model)
        form = family and family.megatron
        return cls(
            num_heads=heads,
            num_kv_heads=kv_heads,
            num_layers=layers,
            num_experts=experts,
            ffn_width=gcd(
                width if not experts or _has_dense(model) else 0,
                (shared or num_shared * expert_width) if experts else 0,
            ),
            expert_width=expert_width if experts else 0,
            latent_width=gcd(query, latent + key) if latent else 0,
            local_layers="latent attention" if latent else (form.own_layers if form else ""),
            has_expert_biases=bool(family and family.experts and family.experts.have_biases),
        )


def _has_dense(model: Mapping[str, Any]) -> bool:
    """Whether a mixture has layers without experts."""
    kinds = model.get("mlp_layer_types")
    return (
        bool(model.get("mlp_only_layers"))
        or bool(model.get("first_k_dense_replace"))
        or (isinstance(kinds, list) and "dense" in kinds)
        or (model.get("decoder_sparse_step") or 1) != 1
    )


def megatron_warnings(at: str, config: Mapping[str, Any]) -> Iterator[str]:
    """Yield warnings about values that are read differently than they are written. `at` is the YAML path of
    strategy_config."""
    config = opened(config)
    yield from (f"{at}.{key} {reason}" for key, reason in derived(config)[1])
    yield from (f"{at}.{key} does nothing here: {UNUSED[key]}." for key in config if key in UNUSED)


def repeated_problems(at: str, config: Mapping[str, Any], values: Mapping[str, object]) -> Iterator[Problem]:
    """Keys that repeat what is set elsewhere and do not agree with it. `values` are those the configuration knows."""
    for key, setting in opened(config).items():
        if key not in SET_ELSEWHERE or setting is None or (key in values and setting == values[key]):
            continue
        known = f" ({show(values[key])}), which {show(setting)} contradicts" if key in values else ""
        yield Problem(f"{at}.{key}: set by {SET_ELSEWHERE[key]}{known}. Remove it.", (f"{at}.{key}",))


def megatron_problems(at: str, config: Mapping[str, Any]) -> Iterator[Problem]:
    """Unknown keys, wrong values, and settings that contradict each other. `at` is the YAML path of strategy_config."""
    for key in opened(config):
        if key in NOT_HERE:
            yield Problem(f"{at}.{key}: {NOT_HERE[key]}. Remove it.", (f"{at}.{key}",))
        elif key not in KNOWN:
            yield Problem(
                f"{at}.{key}: Megatron strategies have no such key.{did_you_mean(str(key), KNOWN)}", (f"{at}.{key}",)
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
    """Yield keys that are set without what they need."""
    full, selective = (s.recompute_granularity == kind for kind in ("full", "selective"))
    is_local, has_stages = s.transformer_impl == "local", s.pipeline_model_parallel_size > 1
    to_all, waits = s.moe_token_dispatcher_type == "alltoall", s.use_distributed_optimizer and s.overlap_grad_reduce
    runs = (s.virtual_pipeline_model_parallel_size or 1) > 1
    ends = [key for key in ENDS if getattr(s, key)]
    needs = {
        **dict.fromkeys((*ends, *(key for key in ACCOUNTS if getattr(s, key))), (has_stages, _STAGES)),
        **({"virtual_pipeline_model_parallel_size": (has_stages, _STAGES)} if runs else {}),
        "overlap_param_gather": (waits, "use_distributed_optimizer: true and overlap_grad_reduce: true"),
        "recompute_method": (full, "recompute_granularity: full"),
        "recompute_num_layers": (full, "recompute_granularity: full"),
        "recompute_modules": (selective, "recompute_granularity: selective"),
        "moe_layer_recompute": (not full, "recompute_granularity other than full, which contains it"),
        "moe_shared_expert_overlap": (to_all, "moe_token_dispatcher_type: alltoall"),
        "variable_seq_lengths": (to_all, "moe_token_dispatcher_type: alltoall"),
        "moe_grouped_gemm": (
            not (is_local and s.overlap_param_gather),
            "overlap_param_gather: false: it does not wait for weights that are still gathered",
        ),
        **dict.fromkeys(ENGINE_KEYS, (not is_local, "transformer_impl: transformer_engine")),
    }
    for key, (is_there, what) in needs.items():
        if getattr(s, key) and not is_there:
            yield key, f"needs {what}. Set that, or remove this."
    if ends and has_stages and s.layers_to_split:
        yield ends[0], "does not go with the account_for_ keys. Remove either."


_STAGES = "pipeline_model_parallel_size of 2 or more"


def _unknown_to_local(s: MegatronSettings, passed_on: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for key, value in passed_on.items() if s.transformer_impl == "local" else ():
        if key in LOCAL_VALUES and value != LOCAL_VALUES[key][0]:
            yield key, f"{show(value)} cannot be used with transformer_impl: local: {LOCAL_VALUES[key][1]}. Remove it."


def ranks_problems(at: str, settings: MegatronSettings, num_ranks: int) -> Iterator[Problem]:
    """Expert parallel sizes that the ranks of a pipeline stage cannot be divided by."""
    s = settings
    inside = num_ranks // s.pipeline_model_parallel_size
    experts, tensor = s.expert_model_parallel_size, s.expert_tensor_size
    if (experts > 1 or s.expert_tensor_parallel_size is not None) and inside % (experts * tensor):
        yield Problem(
            f"{at}.expert_model_parallel_size: {experts} x expert_tensor_parallel_size {tensor} must divide the "
            f"{inside} ranks of a pipeline stage.",
            (f"{at}.expert_model_parallel_size", f"{at}.expert_tensor_parallel_size"),
        )


def cpu_problems(at: str, settings: MegatronSettings) -> Iterator[Problem]:
    """Yield problems of settings that need GPUs."""
    s = settings
    both = s.expert_model_parallel_size > 1 and s.expert_tensor_size > 1
    if both and s.moe_token_dispatcher_type == "alltoall":
        yield Problem(
            f"{at}.expert_tensor_parallel_size: {s.expert_tensor_size} with expert_model_parallel_size "
            f"{s.expert_model_parallel_size} and the alltoall dispatcher does not run on gloo, which CPUs use. Set "
            "it to 1.",
            (f"{at}.expert_tensor_parallel_size",),
            "machine",
        )


def missing_packages(at: str, settings: MegatronSettings) -> Iterator[Problem]:
    """Packages that these settings need and that are not installed."""
    if settings.transformer_impl == "transformer_engine" and not is_installed("transformer_engine"):
        asking = [key for key in ENGINE_KEYS if getattr(settings, key)] or ["transformer_impl"]
        yield Problem(
            f"{at}: {' and '.join(asking)} needs the package transformer-engine, which is not installed. Install it "
            'on a machine with CUDA: pip install "transformer-engine[pytorch]". Or leave '
            "them out, with transformer_impl: local.",
            tuple(f"{at}.{key}" for key in asking),
            "machine",
        )


def sizes_problems(at: str, settings: MegatronSettings, model: ModelFacts) -> Iterator[Problem]:
    """Parallel sizes that the model cannot be divided by."""
    s, tensor, expert_tensor = settings, "tensor_model_parallel_size", "expert_tensor_parallel_size"
    heads = f"{model.num_heads} heads and {model.num_kv_heads} key-value heads"
    latents = "widths of the model's latents (q_lora_rank; kv_lora_rank + qk_rope_head_dim)"
    for key, size, whole, of in (
        (tensor, s.tensor_model_parallel_size, gcd(model.num_heads, model.num_kv_heads), f"model's {heads}"),
        (tensor, s.tensor_model_parallel_size, model.ffn_width, f"model's MLP width of {model.ffn_width}"),
        (tensor, s.tensor_model_parallel_size, model.latent_width, latents),
        (expert_tensor, s.expert_tensor_size, model.expert_width, f"model's expert width of {model.expert_width}"),
        ("expert_model_parallel_size", s.expert_model_parallel_size, model.num_experts or 1,
         f"model's {model.num_experts} experts"),
    ):  # fmt: skip
        if whole % size:
            yield Problem(f"{at}.{key}: {size} must divide the {of}.", (f"{at}.{key}",))
    if model.local_layers and s.transformer_impl == "transformer_engine":
        asking = [key for key in ENGINE_KEYS if getattr(s, key)] or ["transformer_impl"]
        yield Problem(
            f"{at}: {' and '.join(asking)} with {model.local_layers}, which has Megatron's own layers alone here. "
            "Remove it.",
            tuple(f"{at}.{key}" for key in asking),
        )
    yield from _stage_problems(at, s, model.num_layers)
    yield from _bias_problems(at, s) if model.has_expert_biases else ()


def _bias_problems(at: str, s: MegatronSettings) -> Iterator[Problem]:
    """Yield settings that experts with biases (gpt-oss) cannot have in Megatron 0.16."""
    kernel = "true, but Megatron's (0.16) kernel clamps before it adds the biases of this model's experts. Remove it"
    refused = {
        "moe_grouped_gemm": s.moe_grouped_gemm and "true, but this model's experts have biases. Set it to false",
        "expert_tensor_parallel_size": s.expert_tensor_size > 1
        and f"{s.expert_tensor_size}, but this model's experts have biases, which Megatron (0.16) cannot divide. Set "
        "it to 1; expert_model_parallel_size divides experts",
        "bias_activation_fusion": s.bias_activation_fusion and kernel,
        "bias_swiglu_fusion": s.bias_swiglu_fusion and kernel,
    }
    for key, why in refused.items():
        if why:
            yield Problem(f"{at}.{key}: {why}.", (f"{at}.{key}",))


def _stage_problems(at: str, s: MegatronSettings, num_layers: int) -> Iterator[Problem]:
    """Checks that every pipeline stage has layers, and as many as its virtual runs divide."""
    stages, virtual = s.pipeline_model_parallel_size, s.virtual_pipeline_model_parallel_size or 1
    keys = [key for key in (*ENDS, *ACCOUNTS) if getattr(s, key)]
    beside = f" (with {', '.join(f'{key}: {show(getattr(s, key))}' for key in keys)})" if keys else ""
    per_stage = s.stage_layers(num_layers)
    if per_stage is None:
        key = f"{at}.pipeline_model_parallel_size"
        text = f"{key}: {stages} does not divide the model's {num_layers} layers{beside}."
        yield Problem(text, (key, *(f"{at}.{each}" for each in keys)))
    elif uneven := [count for count in per_stage if count % virtual]:
        key = f"{at}.virtual_pipeline_model_parallel_size"
        yield Problem(f"{key}: {virtual} does not divide the {uneven[0]} layers of a pipeline stage{beside}.", (key,))


def tied_problem(ties_head: bool, stages: int) -> str | None:
    """The reason why a model with tied embeddings trains no MTP head over several pipeline stages of Megatron; None
    otherwise."""
    if not ties_head or stages == 1:
        return None
    return (
        "a model whose output matrix is its embedding (tie_word_embeddings) trains no MTP head over "
        f"{stages} pipeline stages"
    )
