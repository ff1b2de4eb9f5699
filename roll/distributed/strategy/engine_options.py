"""The table of arguments of vLLM 0.32.0 and SGLang 0.5.23 that users set and that change what is sampled or stored, or
on which the strategies rely. Any other argument goes to the engine as it is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from roll.configs.problems import Problem, did_you_mean
from roll.configs.sections.cluster import WorkerConfig
from roll.configs.strategies.value_kinds import Kinds, misfits
from roll.configs.tables.roles import ACTOR_INFER

OFF: tuple[Any, ...] = (False, "", {}, [])
_FILES = "trainers send plain weights by Hugging Face's names, but it expects quantised or shared ones, or other names"
_FEWER_BITS = "log-probs in fewer bits were never tested here"
_DRAFTS = "log-probs and seeds of drafted tokens are not checked here, and the drafter's weights would grow stale"
_STALE = "keys and values that are kept outside of the engine would outlive a weight update"
_EXPERTS = "weight updates do not reach experts that are moved or copied"
_OTHER_DISTRIBUTION = "it changes the distribution, which the trainer's log-probs would not know"
_NO_STRUCTURE = "requests say themselves what structure they need, by xgrammar"
_ONE_NODE = "an engine stays on one node, on the devices that the role's device_mapping says"
_MORE_ENGINES = "add devices to device_mapping for more engines"
_GIVES_MEMORY = "an engine must be able to give its memory to a trainer"
_ANOTHER_MODEL = "trainers would use another model: set it in model_args"
_FORM = "set model_args.model_config_kwargs, which trainers read as well"
_PREFETCH = "a pass would compute with layers copied from the host before a weight update; use cpu_offload_gb"
_ROUTES = "actor_train.router_replay.mode: R3 has SGLang do it"


@dataclass(frozen=True)
class Rule:
    """Why an argument is refused, and the values that are fine; `bad`: all are but these. `dtype_names`: so is the
    role's own number format."""

    reason: str
    fine: tuple[Any, ...] = OFF
    dtype_names: bool = False
    bad: tuple[str, ...] = ()


def _rules(reason: str, names: str, *fine: Any) -> dict[str, Rule]:
    return dict.fromkeys(names.split(), Rule(reason, OFF + fine))


ONLINE_FP8 = ("fp8_per_tensor", "fp8_per_block", "fp8_per_channel")

VLLM: Mapping[str, Rule] = {
    "model": Rule("set model_args.model_name_or_path", ()),
    "tokenizer": Rule("set model_args.tokenizer_path", ()),
    "worker_extension_cls": Rule("weight updates need the one that roll sets", ()),
    "worker_cls": Rule("weight updates need vLLM's own worker", ("auto",)),
    "logprobs_mode": Rule("log-probs must be those of the distribution that was sampled from (processed_logprobs)", ()),
    **_rules(_MORE_ENGINES, "data_parallel_size data_parallel_size_local", 1),
    "nnodes": Rule(_ONE_NODE, (1,)),
    "distributed_executor_backend": Rule("the worker starts and watches the engine's processes", ("mp", "uni")),
    "enable_sleep_mode": Rule(_GIVES_MEMORY, (True,)),
    "max_lora_rank": Rule("it follows actor_train.model_args.lora_rank", ()),
    "max_loras": Rule("the policy's adapter is the only one", (1,)),
    "dtype": Rule("set model_args.dtype", ("auto",), dtype_names=True),
    "quantization": Rule(
        f"trainers send weights in bf16 or fp32, but it expects quantised ones; {', '.join(ONLINE_FP8)} quantise what "
        "is sent",
        OFF + ONLINE_FP8,
    ),
    "kv_cache_dtype": Rule(_FEWER_BITS, ("auto",), dtype_names=True),
    "load_format": Rule(_FILES, bad=("bitsandbytes", "gguf", "ipc_cache", "mistral")),
    "lora_dtype": Rule("adapters are stored as the model's weights are", ("auto",), dtype_names=True),
    "generation_config": Rule("set generating_args, and model_args for the tokens that end a response", ("auto",)),
    "runner": Rule("it generates", ("auto", "generate")),
    "hf_overrides": Rule(_FORM),
    "quantization_config": Rule(f"of online quantisation only quantization: {', '.join(ONLINE_FP8)} is shown here"),
    **_rules(_DRAFTS, "speculative_config spec_method spec_model spec_tokens"),
    **_rules(_OTHER_DISTRIBUTION, "logits_processors override_generation_config disable_sliding_window"),
    **_rules(_NO_STRUCTURE, "structured_outputs_config reasoning_parser"),
    **_rules(_STALE, "kv_transfer_config kv_offloading_size", 0),
    **_rules(_EXPERTS, "enable_eplb enable_elastic_ep"),
    **_rules(_ANOTHER_MODEL, "hf_config_path revision code_revision tokenizer_revision"),
    "tokenizer_mode": Rule(_ANOTHER_MODEL, ("auto", "hf", "slow")),
    "offload_backend": Rule(_PREFETCH, ("auto", "uva")),
    "skip_tokenizer_init": Rule("stop strings need the tokenizer"),
    "enable_return_routed_experts": Rule(_ROUTES),
    "weight_transfer_config": Rule("weight updates use the worker's own extension"),
}

SGLANG: Mapping[str, Rule] = {
    "model_path": Rule("set model_args.model_name_or_path", ()),
    "tokenizer_path": Rule("set model_args.tokenizer_path", ()),
    "device": Rule("the role's device_mapping says", ()),
    "dp_size": Rule(_MORE_ENGINES, (1,)),
    "enable_dp_attention": Rule(_MORE_ENGINES),
    "pp_size": Rule("weight updates reach the first pipeline stage only; use tp_size", (1,)),
    "nnodes": Rule(_ONE_NODE, (1,)),
    **_rules(_ONE_NODE, "node_rank base_gpu_id", 0),
    "use_ray": Rule("the worker starts and watches the engine's processes"),
    "enable_memory_saver": Rule(_GIVES_MEMORY, (True,)),
    "skip_tokenizer_init": Rule("stop strings need the tokenizer", (False,)),
    "tokenizer_worker_num": Rule("requests are sent from the worker's own process", (1,)),
    "sampling_backend": Rule("only this one draws every sample from its own seed", ("pytorch",)),
    "allow_auto_truncate": Rule("an over-long prompt is refused", (False,)),
    "enable_weights_cpu_backup": Rule("weights that did not change are not sent again after an offload", (True,)),
    "disaggregation_mode": Rule("an engine must both prefill and decode", ("null",)),
    "enable_return_routed_experts": Rule("actor_train.router_replay.mode: R3 does", (False,)),
    "enable_lora": Rule("weight updates send whole weights", (False,)),
    "lora_paths": Rule("weight updates send whole weights"),
    "custom_sigquit_handler": Rule("the worker watches the engine's processes itself", ()),
    "dtype": Rule("set model_args.dtype", ("auto",), dtype_names=True),
    "quantization": Rule("weight updates of quantised layers are not shown here; vLLM's quantization is", OFF),
    "kv_cache_dtype": Rule(_FEWER_BITS, ("auto",), dtype_names=True),
    "json_model_override_args": Rule(_FORM, (*OFF, "{}")),
    "grammar_backend": Rule(_NO_STRUCTURE, ("none",)),
    "reasoning_parser": Rule(_NO_STRUCTURE),
    "sampling_defaults": Rule("set generating_args", ("openai", "model")),
    "preferred_sampling_params": Rule("set generating_args"),
    "load_format": Rule(_FILES, bad=("bitsandbytes", "gguf", "flash_rl", "presharded", "mistral", "remote_instance")),
    "attention_backend": Rule(
        "it leaves out windows of attention; fa3, flashinfer and triton have them", bad=("flex_attention",)
    ),
    "rl_on_policy_target": Rule("its log-probs come from another trainer's kernels and were never tested here"),
    "is_embedding": Rule("it generates"),
    "enable_custom_logit_processor": Rule(_OTHER_DISTRIBUTION),
    **_rules(_STALE, "hicache_storage_backend enable_lmcache"),
    **_rules(_EXPERTS, "enable_eplb ep_num_redundant_experts", 0),
    "offload_mode": Rule(_PREFETCH, ("cpu",)),
    "offload_group_size": Rule(_PREFETCH, (-1, 0)),
    "revision": Rule(_ANOTHER_MODEL),
    **_rules(_DRAFTS, "speculative_algorithm speculative_draft_model_path"),
}

_DTYPE_NAMES = {"fp32": ("float32", "float"), "bf16": ("bfloat16", "bf16"), "fp16": ("float16", "half")}


def _is_refused(rule: Rule, role: WorkerConfig, value: Any) -> bool:
    if value is None:
        return False
    if rule.bad:
        return isinstance(value, str) and value.lower().replace("-", "_") in rule.bad
    names = _DTYPE_NAMES[role.model_args.dtype] if rule.dtype_names else ()
    return not any(value == fine for fine in (*rule.fine, *names))


def _refused(rules: Mapping[str, Rule], role: WorkerConfig) -> list[str]:
    return [key for key, value in role.strategy_config.items() if key in rules and _is_refused(rules[key], role, value)]


def refusals(rules: Mapping[str, Rule], role_name: str, role: WorkerConfig) -> Iterator[Problem]:
    """Yield the keys that must not be set, and which values they may have. `load_format: dummy` begins with random
    weights, which a trainer replaces for the policy's engines alone."""
    at = f"{role_name}.strategy_args.strategy_config"
    for key in _refused(rules, role):
        rule = rules[key]
        fine = [str(value) for value in rule.fine if not isinstance(value, bool | dict | list) and value != ""]
        rest = f" It may be {' or '.join(fine)}." if fine and not rule.bad else ""
        yield Problem(f"{at}.{key} cannot be set: {rule.reason}.{rest}", (f"{at}.{key}",))
    if role.strategy_config.get("load_format") == "dummy" and role_name != ACTOR_INFER.name:
        yield Problem(
            f"{at}.load_format: dummy starts with random weights, and no trainer sends weights to {role_name}. Remove "
            "it.",
            (f"{at}.load_format",),
        )


def option_problems(
    rules: Mapping[str, Rule],
    role_name: str,
    role: WorkerConfig,
    known: Mapping[str, Kinds | None] | None,
    ranges: Mapping[str, Mapping[str, float]],
    of: str,
    own: tuple[str, ...] = (),
) -> Iterator[Problem]:
    """Finds keys of `strategy_config` that the engine does not take, or that are not the user's to set.

    - `known`: the arguments that the engine's class `of` has; None where it is not installed
    - `ranges`: beyond which an engine fails after minutes, though its class does not say so
    - `own`: keys that are roll's
    """
    at = f"{role_name}.strategy_args.strategy_config"
    others = [key for key in role.strategy_config if key not in (*_refused(rules, role), *own)]
    if known is not None:
        kinds = {key: replace(kind, **ranges.get(key, {})) for key, kind in known.items() if kind is not None}
        yield from misfits(at, {key: role.strategy_config[key] for key in others}, kinds)
    yield from refusals(rules, role_name, role)
    for key in others:
        if known is not None and key not in known:
            yield Problem(f"{at}.{key}: {of} has no such argument.{did_you_mean(key, known)}", (f"{at}.{key}",))
