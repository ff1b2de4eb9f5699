"""Checks of the settings of the megatron strategies, on any machine and on this one, with the nearest setting that
works."""

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

FUSED_BIASES = ("bias_activation_fusion", "bias_swiglu_fusion")


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
    if s.moe_grouped_gemm and s.overlap_param_gather and s.transformer_impl == "local":
        yield (
            "moe_grouped_gemm",
            "does not wait for weights that are still gathered (overlap_param_gather). Remove either.",
        )
    for key in ENGINE_KEYS:
        if getattr(s, key) and s.transformer_impl == "local":
            yield key, "true contradicts transformer_impl: local. Remove that, or set this to false."
    for key in (key for key in (*ENDS, *ACCOUNTS) if getattr(s, key)):
        if s.pipeline_model_parallel_size == 1:
            yield key, "needs pipeline_model_parallel_size of 2 or more. Remove it."
        elif key in ENDS and s.layers_to_split:
            yield key, "does not go with the account_for_ keys. Remove either."


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
    """Yield problems of settings that need GPUs."""
    s = settings
    both = s.expert_model_parallel_size > 1 and s.expert_tensor_size > 1
    if both and s.moe_token_dispatcher_type == "alltoall":
        yield Problem(
            f"{at}.expert_tensor_parallel_size: {s.expert_tensor_size} with expert_model_parallel_size "
            f"{s.expert_model_parallel_size} and the alltoall dispatcher does not run on gloo, which CPUs use. Nearest "
            "that works: 1.",
            (f"{at}.expert_tensor_parallel_size",),
            "machine",
        )


def missing_packages(at: str, settings: MegatronSettings) -> Iterator[Problem]:
    """Packages that these settings need and that are not installed."""
    if settings.transformer_impl == "transformer_engine" and not is_installed("transformer_engine"):
        asking = [key for key in ENGINE_KEYS if getattr(settings, key)] or ["transformer_impl"]
        verb = "needs" if len(asking) == 1 else "need"
        yield Problem(
            f"{at}: {' and '.join(asking)} {verb} the package transformer-engine, which is not installed. Install it "
            'on a machine with CUDA: pip install "transformer-engine[pytorch]". Or use: '
            f"{', '.join(f'{key}: {_WITHOUT[key]}' for key in asking)}.",
            tuple(f"{at}.{key}" for key in asking),
            "machine",
        )


_WITHOUT = {"transformer_impl": "local"} | dict.fromkeys(ENGINE_KEYS, "false")


def sizes_problems(at: str, settings: MegatronSettings, model: ModelFacts) -> Iterator[Problem]:
    """Parallel sizes that the model cannot be divided by, each with the nearest that works."""
    s = settings
    tensor = "tensor_model_parallel_size"
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
    elif model.latent_width % s.tensor_model_parallel_size:
        yield _refuse(
            at, tensor, s.tensor_model_parallel_size,
            "must divide the widths of the model's latents (q_lora_rank; kv_lora_rank + qk_rope_head_dim)",
            [n for n in both if model.latent_width % n == 0],
        )  # fmt: skip
    if model.local_layers and s.transformer_impl == "transformer_engine":
        asking = [key for key in ENGINE_KEYS if getattr(s, key)] or ["transformer_impl"]
        yield Problem(
            f"{at}: {' and '.join(asking)} with {model.local_layers}, which has Megatron's own layers alone here. "
            "Remove "
            f"{'it' if len(asking) == 1 else 'them'}.",
            tuple(f"{at}.{key}" for key in asking),
        )
    yield from _stage_problems(at, s, model.num_layers)
    yield from _expert_problems(at, s, model)


def _expert_problems(at: str, s: MegatronSettings, model: ModelFacts) -> Iterator[Problem]:
    if model.has_expert_biases and s.moe_grouped_gemm:
        yield Problem(
            f"{at}.moe_grouped_gemm: true, but this model's experts have biases, which run one after the other. Set it "
            "to false.",
            (f"{at}.moe_grouped_gemm",),
        )
    if model.has_expert_biases and s.expert_tensor_size > 1:
        yield Problem(
            f"{at}.expert_tensor_parallel_size: {s.expert_tensor_size}, but this model's experts have biases, which "
            "Megatron (0.16) cannot divide among ranks. Set it to 1 (by itself it is tensor_model_parallel_size); "
            "expert_model_parallel_size divides experts.",
            (f"{at}.expert_tensor_parallel_size",),
        )
    elif model.expert_width % s.expert_tensor_size:
        yield _refuse(
            at, "expert_tensor_parallel_size", s.expert_tensor_size,
            f"must divide the model's expert width of {model.expert_width}", _divisors(model.expert_width),
        )  # fmt: skip
    for key in FUSED_BIASES if model.has_expert_biases else ():
        if getattr(s, key):
            yield Problem(
                f"{at}.{key}: true, but Megatron's (0.16) kernel clamps before it adds the biases of this model's "
                "experts, not after. Remove it.",
                (f"{at}.{key}",),
            )
    if not model.num_experts and s.expert_model_parallel_size > 1:
        yield _refuse(at, "expert_model_parallel_size", s.expert_model_parallel_size, "needs a model with experts", [1])
    if model.num_experts and model.num_experts % s.expert_model_parallel_size:
        yield _refuse(
            at, "expert_model_parallel_size", s.expert_model_parallel_size,
            f"must divide the model's {model.num_experts} experts", _divisors(model.num_experts),
        )  # fmt: skip


def _stage_problems(at: str, s: MegatronSettings, num_layers: int) -> Iterator[Problem]:
    """Checks that every pipeline stage has layers, and as many as its virtual runs divide."""
    stages, virtual = s.pipeline_model_parallel_size, s.virtual_pipeline_model_parallel_size or 1
    keys = [key for key in (*ENDS, *ACCOUNTS) if getattr(s, key)]
    beside = f" (with {', '.join(f'{key}: {show(getattr(s, key))}' for key in keys)})" if keys else ""
    per_stage = s.stage_layers(num_layers)
    if per_stage is None:
        near = "" if keys else f" Nearest that works: {_near(stages, _divisors(num_layers))}."
        key = f"{at}.pipeline_model_parallel_size"
        text = f"{key}: {stages} does not divide the model's {num_layers} layers{beside}.{near}"
        yield Problem(text, (key, *(f"{at}.{each}" for each in keys)))
    elif uneven := [count for count in per_stage if count % virtual]:
        key = f"{at}.virtual_pipeline_model_parallel_size"
        yield Problem(f"{key}: {virtual} does not divide the {uneven[0]} layers of a pipeline stage{beside}.", (key,))


def _refuse(at: str, key: str, value: int, why: str, choices: list[int]) -> Problem:
    return Problem(f"{at}.{key}: {value} {why}. Nearest that works: {_near(value, choices)}.", (f"{at}.{key}",))


def _near(value: int, choices: list[int]) -> str:
    return " or ".join(map(str, [n for n in choices if n < value][-1:] + [n for n in choices if n > value][:1]))


def _divisors(whole: int) -> list[int]:
    return [n for n in range(1, whole + 1) if whole % n == 0]


def tied_problem(ties_head: bool, stages: int) -> str | None:
    """The reason why a model with tied embeddings trains no MTP head over several pipeline stages of Megatron; None
    otherwise."""
    if not ties_head or stages == 1:
        return None
    return (
        "a model whose output matrix is its embedding (tie_word_embeddings) trains no MTP head over "
        f"{stages} pipeline stages"
    )
