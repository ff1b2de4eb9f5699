"""The table of engine arguments that change what is sampled or stored, and of those that the strategies rely on.

Every argument of vLLM 0.32.0 and SGLang 0.5.23 was read for it, and of vLLM's mappings every key (`a.b` is key b of
argument a). One that is in no table changes speed, memory or the last bits of a sum:
`tests/unit/distributed/strategy/engine_options_without_effect.txt` lists them, and a test fails for an argument of a
newer engine that is in neither.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from roll.configs.problems import Problem, did_you_mean
from roll.configs.sections.cluster import WorkerConfig
from roll.configs.strategies.value_kinds import Kinds, misfits
from roll.configs.tables.roles import ACTOR_INFER

OFF: tuple[Any, ...] = (False, "", {}, [])
_CHECKPOINT = "trainers send weights in bf16 or fp32, but it expects quantised ones"
_FILES = "trainers send plain weights by Hugging Face's names, but it expects quantised or shared ones, or other names"
_FEWER_BITS = "log-probs in fewer bits were never tested here"
_STATE = "log-probs with another form of state were never tested here"
_DRAFTS = "log-probs and seeds of drafted tokens are not checked here, and the drafter's weights would grow stale"
_STALE = "keys and values that are kept outside of the engine would outlive a weight update"
_EXPERTS = "weight updates do not reach experts that are moved or copied"
_OTHER_WEIGHTS = "weight updates do not reach weights that are kept elsewhere"
_PREFETCH = "a pass would compute with layers copied from the host before a weight update; use cpu_offload_gb"
_OTHER_DISTRIBUTION = "it changes the distribution, which the trainer's log-probs would not know"
_NO_STRUCTURE = "requests say themselves what structure they need, by xgrammar"
_BIASES = "this kernel leaves out the biases of the model's experts"
_ONE_NODE = "an engine stays on one node, on the devices that the role's device_mapping says"
_MORE_ENGINES = "add devices to device_mapping for more engines"
_GIVES_MEMORY = "an engine must be able to give its memory to a trainer"
_ANOTHER_MODEL = "trainers would use another model: set it in model_args"
_FORM = "set model_args.model_config_kwargs, which trainers read as well"


@dataclass(frozen=True)
class Rule:
    """Why an argument is refused, and the values that are fine; `bad`: all are but these. `dtype_names`: so is the
    role's own number format. `keys`: of a mapping, the keys that it may have. `models`: it holds for these types
    alone."""

    reason: str
    fine: tuple[Any, ...] = OFF
    dtype_names: bool = False
    bad: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    models: tuple[str, ...] = ()


def _rules(reason: str, names: str, *fine: Any, bad: tuple[str, ...] = ()) -> dict[str, Rule]:
    return dict.fromkeys(names.split(), Rule(reason, OFF + fine, bad=bad))


# Keys of additional_config that change speed, memory or logs: vLLM's own, then those of vllm-ascend.
_ADDITIONAL = (
    *("gdn_prefill_backend", "kda_prefill_backend", "kda_prefill_checkpoint"),
    *("weight_nz_mode", "enable_cpu_binding", "refresh", "ascend_log_path", "ascend_compilation_config", "rl_config"),
)
_WITH_BIASES = ("gpt_oss",)
ONLINE_FP8 = ("fp8_per_tensor", "fp8_per_block", "fp8_per_channel")

VLLM: Mapping[str, Rule] = {
    "model": Rule("set model_args.model_name_or_path", ()),
    "tokenizer": Rule("set model_args.tokenizer_path", ()),
    "worker_extension_cls": Rule("weight updates need the one that roll sets", ()),
    "logprobs_mode": Rule("log-probs must be those of the distribution that was sampled from (processed_logprobs)", ()),
    **_rules(_MORE_ENGINES, "data_parallel_size data_parallel_size_local", 1),
    **_rules(_MORE_ENGINES, "data_parallel_rank data_parallel_start_rank", 0),
    **_rules(_MORE_ENGINES, "data_parallel_hybrid_lb data_parallel_external_lb data_parallel_multi_port_external_lb"),
    "nnodes": Rule(_ONE_NODE, (1,)),
    **_rules(_ONE_NODE, "node_rank device_ids", 0),
    "distributed_executor_backend": Rule("the worker starts and watches the engine's processes", ("mp", "uni")),
    "enable_sleep_mode": Rule(_GIVES_MEMORY, (True,)),
    "max_lora_rank": Rule("it follows actor_train.model_args.lora_rank", ()),
    "max_loras": Rule("the policy's adapter is the only one", (1,)),
    "max_cpu_loras": Rule("the policy's adapter is the only one", (1,)),
    "lora_target_modules": Rule("the engine would ignore some of the trained adapters"),
    "dtype": Rule("set model_args.dtype", ("auto",), dtype_names=True),
    "quantization": Rule(f"{_CHECKPOINT}; {', '.join(ONLINE_FP8)} quantise what is sent", OFF + ONLINE_FP8),
    "kv_cache_dtype": Rule(_FEWER_BITS, ("auto",), dtype_names=True),
    "load_format": Rule(_FILES, bad=("bitsandbytes", "gguf", "ipc_cache", "mistral")),
    "safetensors_load_strategy": Rule(_CHECKPOINT, bad=("torchao",)),
    "video_pruning_rate": Rule("trainers would see other pictures", (0,)),
    "config_format": Rule(_ANOTHER_MODEL, ("auto", "hf")),
    "worker_cls": Rule("weight updates need vLLM's own worker", ("auto",)),
    "scheduler_cls": Rule("another scheduler was never tested here with pauses and weight updates"),
    "moe_backend": Rule(_BIASES, bad=("flashinfer_cutlass",), models=_WITH_BIASES),
    "kernel_config.moe_backend": Rule(_BIASES, bad=("flashinfer_cutlass",), models=_WITH_BIASES),
    "lora_dtype": Rule("adapters are stored as the model's weights are", ("auto",), dtype_names=True),
    **_rules("adapters of experts in another layout were never tested here", "enable_mixed_moe_lora_format"),
    **_rules("adapters of experts in another layout were never tested here", "enable_moe_shared_loras"),
    "generation_config": Rule("set generating_args, and model_args for the tokens that end a response", ("auto",)),
    "runner": Rule("it generates", ("auto", "generate")),
    "convert": Rule("it generates", ("auto", "none")),
    "mamba_cache_dtype": Rule(_STATE, ("auto",)),
    "mamba_ssm_cache_dtype": Rule(_STATE, ("auto",)),
    "hf_overrides": Rule(_FORM),
    "quantization_config": Rule(f"of online quantisation only quantization: {', '.join(ONLINE_FP8)} is shown here"),
    **_rules(_FEWER_BITS, "kv_cache_dtype_skip_layers kv_sharing_fast_prefill mm_encoder_attn_dtype"),
    **_rules(_FEWER_BITS, "mm_encoder_fp8_scale_path attention_config.use_prefill_query_quantization"),
    **_rules(_FEWER_BITS, "attention_config.indexer_kv_dtype", "auto", "bf16"),
    **_rules(_FEWER_BITS, "attention_config.indexer_sparse_logits attention_config.hisparse_config"),
    **_rules(_STATE, "mamba_config.enable_stochastic_rounding mamba_config.stochastic_rounding_philox_rounds", 0),
    **_rules(_STATE, "enable_mamba_cache_stochastic_rounding mamba_cache_philox_rounds use_replayssm"),
    **_rules(_DRAFTS, "speculative_config spec_method spec_model spec_tokens"),
    **_rules(_OTHER_DISTRIBUTION, "logits_processors override_generation_config watermark_config diffusion_config"),
    **_rules(_OTHER_DISTRIBUTION, "disable_sliding_window engram_config attention_config.use_non_causal"),
    **_rules(_OTHER_DISTRIBUTION, "compilation_config.inductor_passes"),
    "compilation_config.inductor_compile_config.freezing": Rule(_OTHER_WEIGHTS),
    "compilation_config.cache_dir": Rule(
        "vllm would take graphs from it that were compiled for another model or other settings; VLLM_CACHE_ROOT in "
        "system_envs moves all its caches"
    ),
    "additional_config": Rule(
        "vLLM's plugins for other devices read it, and this key was never tested here", keys=_ADDITIONAL
    ),
    "additional_config.weight_nz_mode": Rule("weight updates need torch's layout", (0, 1)),
    "ec_manager_config.encoder_cache_manager_cls": Rule("weight updates drop what vLLM's own cache has of pictures"),
    **_rules(_NO_STRUCTURE, "structured_outputs_config reasoning_parser reasoning_parser_plugin reasoning_config"),
    **_rules(_STALE, "kv_transfer_config kv_offloading_size ec_transfer_config", 0),
    **_rules(_EXPERTS, "enable_eplb eplb_config enable_elastic_ep"),
    **_rules(_ANOTHER_MODEL, "model_weights hf_config_path revision code_revision tokenizer_revision"),
    **_rules(_ANOTHER_MODEL, "model_class_overrides"),
    "offload_backend": Rule(_PREFETCH, ("auto", "uva")),
    **_rules(_PREFETCH, "offload_group_size offload_params"),
    **_rules(_PREFETCH, "offload_num_in_group offload_prefetch_step", 1),
    "tokenizer_mode": Rule(_ANOTHER_MODEL, ("auto", "hf", "slow")),
    **_rules("stop strings need the tokenizer", "skip_tokenizer_init tokens_only"),
    "mm_encoder_only": Rule("it generates"),
    "aux_output_config.enable_return_routed_experts": Rule("actor_train.router_replay.mode: R3 has SGLang do it"),
    "enable_return_routed_experts": Rule("actor_train.router_replay.mode: R3 has SGLang do it"),
    "enable_trace_replay": Rule("samples would come from a trace"),
    "weight_transfer_config": Rule("weight updates use the worker's own extension"),
    "default_mm_loras": Rule("the policy's adapter is the only one"),
}

SGLANG: Mapping[str, Rule] = {
    "model_path": Rule("set model_args.model_name_or_path", ()),
    "tokenizer_path": Rule("set model_args.tokenizer_path", ()),
    "device": Rule("the role's device_mapping says", ()),
    **_rules(_MORE_ENGINES, "dp_size attn_dp_size", 1),
    "enable_dp_attention": Rule(_MORE_ENGINES),
    "pp_size": Rule("weight updates reach the first pipeline stage only; use tp_size", (1,)),
    **_rules(_ONE_NODE, "nnodes gpu_id_step", 1),
    **_rules(_ONE_NODE, "node_rank base_gpu_id", 0),
    "use_ray": Rule("the worker starts and watches the engine's processes"),
    "enable_memory_saver": Rule(_GIVES_MEMORY, (True,)),
    "dwdp_size": Rule(_OTHER_WEIGHTS, (1,)),
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
    "qsa_indexer_dtype": Rule(_FEWER_BITS, ("auto",), dtype_names=True),
    "deepep_dispatcher_output_dtype": Rule(_FEWER_BITS, ("auto", "bf16")),
    "flashinfer_a2a_dispatch_type": Rule(_FEWER_BITS, ("auto", "bf16")),
    "flashinfer_mxfp4_moe_precision": Rule(_FEWER_BITS, ("default", "bf16")),
    "prefill_kv_cache_dequant_dtype": Rule(_FEWER_BITS, ("auto",)),
    "mamba_ssm_dtype": Rule(_STATE, ("auto", "float32")),
    "json_model_override_args": Rule(_FORM, (*OFF, "{}")),
    "grammar_backend": Rule(_NO_STRUCTURE, ("none",)),
    "sampling_defaults": Rule("set generating_args", ("openai", "model")),
    "preferred_sampling_params": Rule("set generating_args"),
    "tokenizer_mode": Rule(_ANOTHER_MODEL, ("auto",)),
    "model_config_parser": Rule(_ANOTHER_MODEL, ("auto", "hf")),
    "kv_canary": Rule("it writes marks into the cache", ("none",)),
    "load_format": Rule(
        _FILES,
        bad=(
            *("bitsandbytes", "gguf", "flash_rl", "expert_pack", "presharded", "ipc_cache", "mistral"),
            *("remote_instance", "private"),
        ),
    ),
    "moe_a2a_backend": Rule(_FEWER_BITS, ("none", "deepep", "deepep_v2", "flashinfer", "mori", "pplx")),
    "moe_runner_backend": Rule(_BIASES, ("auto", "triton", "triton_kernel", "aiter"), models=_WITH_BIASES),
    **_rules(_FEWER_BITS, "dsa_prefill_backend dsa_decode_backend dsv4_prefill_backend", bad=("flashmla_sparse_q8",)),
    **_rules(
        "it leaves out windows of attention; fa3, flashinfer and triton have them",
        "attention_backend prefill_attention_backend decode_attention_backend",
        bad=("flex_attention",),
    ),
    "dsv4_attn_backend": Rule(_FEWER_BITS, bad=("trtllm",)),
    "enable_cp_decode_attn_tp": Rule(_OTHER_WEIGHTS),
    "dcp_replicate_q_proj": Rule(_OTHER_WEIGHTS),
    "ep_dispatch_algorithm": Rule("it sends tokens to random experts", bad=("fake",)),
    "rl_on_policy_target": Rule("its log-probs come from another trainer's kernels and were never tested here"),
    "forward_hooks": Rule(_OTHER_DISTRIBUTION),
    "is_embedding": Rule("it generates"),
    "encoder_only": Rule("it generates"),
    "delete_ckpt_after_loading": Rule("trainers load the same files"),
    **_rules(_CHECKPOINT, "quantization_param_path modelopt_quant modelopt_checkpoint_restore_path"),
    **_rules(_CHECKPOINT, "modelopt_checkpoint_save_path modelopt_export_path quantize_and_serve rl_quant_profile"),
    **_rules(_FEWER_BITS, "enable_quant_communications enable_w4a4_mxfp4_megamoe enable_deepseek_v4_fp4_indexer"),
    **_rules(_FEWER_BITS, "enable_tf32_matmul enable_hisparse hisparse_config enable_decoder_swa_bounded_replay"),
    **_rules(_FEWER_BITS, "enable_encoder_swa_bounded_replay enable_mis"),
    **_rules(_STATE, "enable_mamba_cache_stochastic_rounding mamba_cache_philox_rounds enable_int8_mamba_checkpoint"),
    **_rules(_STATE, "enable_linear_replayssm enable_linear_replayssm_spec"),
    **_rules(_OTHER_DISTRIBUTION, "enable_custom_logit_processor enable_watermark watermark_config watermark_key"),
    **_rules(_OTHER_DISTRIBUTION, "watermark_key_b watermark_default_enabled watermark_enforce_all dllm_algorithm"),
    **_rules(_OTHER_DISTRIBUTION, "dllm_algorithm_config dllm_fdfo enable_strict_thinking mlx_enable_sampling"),
    **_rules(_NO_STRUCTURE, "constrained_json_whitespace_pattern constrained_json_disable_any_whitespace"),
    **_rules(_NO_STRUCTURE, "constrained_json_max_whitespace_cnt reasoning_parser"),
    **_rules(_STALE, "hicache_storage_backend enable_lmcache lmcache_config_file enable_flexkv flexkv_config_file"),
    **_rules(_STALE, "enable_unified_cache_external_linker unified_cache_external_linker_backend radix_cache_backend"),
    **_rules(_EXPERTS, "enable_eplb ep_num_redundant_experts enable_elastic_expert_backup elastic_ep_backend", 0),
    **_rules(_EXPERTS, "enable_waterfill enable_paged_experts"),
    "init_expert_location": Rule(_EXPERTS, ("trivial",)),
    **_rules(_OTHER_WEIGHTS, "kt_weight_path kt_num_gpu_experts custom_weight_loader enable_nvidia_megakernel"),
    **_rules(_OTHER_WEIGHTS, "enable_amd_monokernel ple_offload_embedding ple_offload_dir"),
    "offload_mode": Rule(_PREFETCH, ("cpu",)),
    "offload_group_size": Rule(_PREFETCH, (-1, 0)),
    **_rules(_PREFETCH, "offload_num_in_group offload_prefetch_step", 1),
    "enable_dsa_fused_indexer": Rule(_OTHER_WEIGHTS),
    "weight_cache_mode": Rule(_OTHER_WEIGHTS, ("off",)),
    **_rules(_ANOTHER_MODEL, "revision decrypted_config_file"),
    **_rules(
        _DRAFTS,
        "speculative_algorithm uno_lora_path speculative_draft_model_path speculative_boundary_reduction "
        "speculative_draft_model_revision speculative_draft_load_format speculative_num_steps speculative_eagle_topk "
        "speculative_num_draft_tokens speculative_dflash_block_size speculative_domino_candidate_pool_size "
        "speculative_dspark_block_size speculative_dspark_sps_table_path speculative_dspark_confidence_sts_path "
        "speculative_use_rejection_sampling speculative_use_block_verification speculative_token_map "
        "speculative_draft_kv_cache_dtype speculative_draft_window_size speculative_draft_sink_size "
        "speculative_enable_w4a4_mxfp4_megamoe speculative_draft_model_quantization enable_multi_layer_eagle "
        "speculative_adaptive speculative_adaptive_config decoupled_spec_bind_endpoint decoupled_spec_rank "
        "decoupled_spec_connect_endpoints decrypted_draft_config_file enable_draft_weights_cpu_backup",
    ),
    "decoupled_spec_role": Rule(_DRAFTS, (*OFF, "null")),
}

_DTYPE_NAMES = {"fp32": ("float32", "float"), "bf16": ("bfloat16", "bf16"), "fp16": ("float16", "half")}


def _value(config: Mapping[str, Any], name: str) -> Any:
    """The value of an argument, or of a key of one; None if it is not there, which asks for nothing."""
    argument, _, key = name.partition(".")
    value = config.get(argument)
    return _value(value, key) if key and isinstance(value, Mapping) else None if key else value


def _is_refused(rule: Rule, role: WorkerConfig, value: Any) -> bool:
    if value is None or (rule.keys and isinstance(value, Mapping)):
        return False
    if rule.bad:
        return isinstance(value, str) and value.lower().replace("-", "_") in rule.bad
    names = _DTYPE_NAMES[role.model_args.dtype] if rule.dtype_names else ()
    return not any(value == fine for fine in (*rule.fine, *names))


def refused_keys(rules: Mapping[str, Rule], role: WorkerConfig, model_type: str | None = None) -> dict[str, Rule]:
    """The rules by which values in `strategy_config` are refused, by argument or, of such as are mappings, by their
    keys (`a.b`), in its order. Without a model those that hold for every model, and with one those for its type
    alone."""
    refused: dict[str, Rule] = {}
    for argument in role.strategy_config:
        for name in [name for name in rules if name.partition(".")[0] == argument]:
            rule, value = rules[name], _value(role.strategy_config, name)
            if not (model_type in rule.models if rule.models else model_type is None):
                continue
            if _is_refused(rule, role, value):
                refused[name] = rule
            elif rule.keys and isinstance(value, Mapping):
                refused |= {f"{name}.{key}": rule for key in value if key not in rule.keys}
    return refused


def refusals(
    rules: Mapping[str, Rule], role_name: str, role: WorkerConfig, model_type: str | None = None
) -> Iterator[Problem]:
    """Yield the keys that must not be set, and which values they may have (`refused_keys`). `load_format: dummy` begins
    with random weights, which a trainer replaces for the policy's engines alone."""
    at = f"{role_name}.strategy_args.strategy_config"
    for key, rule in refused_keys(rules, role, model_type).items():
        fine = [str(value) for value in rule.fine if not isinstance(value, bool | dict | list) and value != ""]
        rest = f" It may be {' or '.join(fine)}." if fine and not rule.bad and not rule.keys else ""
        of = f" ({model_type})" if model_type else ""
        yield Problem(f"{at}.{key} cannot be set: {rule.reason}{of}.{rest}", (f"{at}.{key}",))
    if model_type is None and role.strategy_config.get("load_format") == "dummy" and role_name != ACTOR_INFER.name:
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
    others = [key for key in role.strategy_config if key not in (*refused_keys(rules, role), *own)]
    if known is not None:
        kinds = {key: replace(kind, **ranges.get(key, {})) for key, kind in known.items() if kind is not None}
        yield from misfits(at, {key: role.strategy_config[key] for key in others}, kinds)
    yield from refusals(rules, role_name, role)
    for key in others:
        if known is not None and key not in known:
            yield Problem(f"{at}.{key}: {of} has no such argument.{did_you_mean(key, known)}", (f"{at}.{key}",))
