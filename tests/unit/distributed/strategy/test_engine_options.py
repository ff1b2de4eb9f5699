"""Which engine arguments are refused, and that every argument of the installed engines has been read."""

import ast
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from roll.configs.sections.cluster import WorkerConfig
from roll.configs.strategies.value_kinds import class_annotations
from roll.distributed.strategy.engine_options import ONLINE_FP8, SGLANG, VLLM, Rule, refusals
from roll.distributed.strategy.sglang import args as sglang_args
from roll.distributed.strategy.vllm import args as vllm_args

_LISTS = Path(__file__).with_name("engine_options_without_effect.txt")
RULES = {"vllm": VLLM, "sglang": SGLANG}
ARGUMENTS: dict[str, Callable[[], Mapping[str, Any] | None]] = {
    "vllm": vllm_args.engine_argument_kinds,
    "sglang": sglang_args.engine_argument_kinds,
}


def without_effect(engine: str) -> set[str]:
    sections = _LISTS.read_text(encoding="utf-8").split("# ")
    (words,) = [section.partition("\n")[2] for section in sections if section.startswith(f"{engine}:")]
    return set(words.split())


INDUCTOR = "compilation_config.inductor_compile_config."  # torch's own settings
VLLM_MAPPINGS = {  # arguments of vLLM that are mappings, and the class of their keys
    "attention_config": ("attention", "AttentionConfig"),
    "aux_output_config": ("aux_output", "AuxOutputConfig"),
    "compilation_config": ("compilation", "CompilationConfig"),
    "compilation_config.dynamic_shapes_config": ("compilation", "DynamicShapesConfig"),
    "compilation_config.pass_config": ("compilation", "PassConfig"),
    "ec_manager_config": ("ec_manager_config", "EncoderCacheManagerConfig"),
    "fault_tolerance_config": ("fault_tolerance", "FaultToleranceConfig"),
    "kernel_config": ("kernel", "KernelConfig"),
    "mamba_config": ("mamba", "MambaConfig"),
}


def keys_of_vllm_mappings() -> set[str] | None:
    """Keys of all of them, as `a.b`, from the installed source text; None if vllm is not installed."""
    spec = find_spec("vllm")
    if spec is None or not spec.submodule_search_locations:
        return None
    folder = Path(next(iter(spec.submodule_search_locations))) / "config"
    keys: set[str] = set()
    for argument, (file, name) in VLLM_MAPPINGS.items():
        tree = ast.parse((folder / f"{file}.py").read_text(encoding="utf-8"))
        keys |= {f"{argument}.{key}" for key in class_annotations(tree, (name,))}
    return keys


def said(
    rules: Mapping[str, Rule], role_name: str = "actor_infer", model_type: str | None = None, **given: Any
) -> list[str]:
    role = WorkerConfig.model_validate(
        {
            "model_args": {"model_name_or_path": "m", "dtype": "bf16"},
            "strategy_args": {"strategy_name": "vllm", "strategy_config": given},
        }
    )
    return [problem.text for problem in refusals(rules, role_name, role, model_type)]


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_every_argument_of_the_installed_engine_is_in_one_list(engine: str) -> None:
    """A new argument fails here until somebody has read whether it changes what is sampled or stored."""
    arguments, keys = ARGUMENTS[engine](), keys_of_vllm_mappings() if engine == "vllm" else set[str]()
    if arguments is None or keys is None:
        pytest.skip(f"{engine} is not installed")
    known, listed = {*arguments} | keys, without_effect(engine)
    of_others = {name for name in RULES[engine] if name.startswith(("additional_config.", INDUCTOR))}
    assert known - {*RULES[engine]} - listed == set()
    assert listed - known == set() and {*RULES[engine]} - known == of_others
    assert listed & {*RULES[engine]} == set()


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("vllm", {"quantization": "awq"}, "trainers send weights in bf16 or fp32"),
    ("vllm", {"quantization": "fp8"}, "It may be fp8_per_tensor or fp8_per_block or fp8_per_channel."),
    ("vllm", {"quantization_config": {"linear": "mxfp8"}}, "only quantization: fp8_per_tensor"),
    ("vllm", {"kv_cache_dtype": "fp8"}, "log-probs in fewer bits were never tested here. It may be auto."),
    ("vllm", {"kv_cache_dtype": "float16"}, "fewer bits"),
    ("vllm", {"speculative_config": {"method": "ngram"}}, "drafted tokens"),
    ("vllm", {"spec_tokens": 3}, "drafted tokens"),
    ("vllm", {"logits_processors": ["a.b:C"]}, "it changes the distribution"),
    (
        "vllm",
        {"structured_outputs_config": {"backend": "xgrammar"}},
        "requests say themselves what structure they need",
    ),
    ("vllm", {"override_generation_config": {"top_k": 3}}, "it changes the distribution"),
    ("vllm", {"generation_config": "vllm"}, "set generating_args"),
    ("vllm", {"dtype": "float32"}, "set model_args.dtype"),
    ("vllm", {"load_format": "bitsandbytes"}, "expects quantised or shared ones"),
    ("vllm", {"hf_overrides": {"rope_theta": 1}}, "set model_args.model_config_kwargs"),
    ("vllm", {"kv_offloading_size": 4.0}, "would outlive a weight update"),
    ("vllm", {"enable_eplb": True}, "do not reach experts"),
    ("vllm", {"mamba_ssm_cache_dtype": "float16"}, "with another form of state"),
    ("vllm", {"offload_group_size": 4}, "layers copied from the host before a weight update; use cpu_offload_gb"),
    ("vllm", {"offload_backend": "prefetch"}, "It may be auto or uva."),
    ("vllm", {"load_format": "IPC_cache"}, "expects quantised or shared ones, or other names"),
    ("vllm", {"safetensors_load_strategy": "torchao"}, "expects quantised ones"),
    ("vllm", {"video_pruning_rate": 0.5}, "other pictures"),
    ("vllm", {"config_format": "mistral"}, "trainers would use another model"),
    ("vllm", {"worker_cls": "a.B"}, "It may be auto."),
    ("vllm", {"scheduler_cls": "a.B"}, "another scheduler"),
    ("vllm", {"lora_dtype": "float16"}, "adapters are stored as the model's weights are. It may be auto."),
    ("vllm", {"mm_encoder_attn_dtype": "fp8"}, "fewer bits"),
    ("vllm", {"mm_encoder_fp8_scale_path": "/scales"}, "fewer bits"),
    ("vllm", {"mm_encoder_only": True}, "it generates"),
    ("vllm", {"tokens_only": True}, "stop strings need the tokenizer"),
    ("vllm", {"enable_moe_shared_loras": True}, "in another layout"),
    ("vllm", {"nnodes": 2}, "an engine stays on one node"),
    ("vllm", {"node_rank": 1}, "an engine stays on one node"),
    ("vllm", {"device_ids": [3]}, "device_mapping"),
    ("vllm", {"data_parallel_rank": 1}, "add devices to device_mapping for more engines"),
    ("vllm", {"data_parallel_external_lb": True}, "add devices to device_mapping for more engines"),
    ("vllm", {"distributed_executor_backend": "ray"}, "It may be mp or uni."),
    ("vllm", {"enable_sleep_mode": False}, "give its memory to a trainer"),
    ("sglang", {"enable_memory_saver": False}, "give its memory to a trainer"),
    ("sglang", {"base_gpu_id": 2}, "device_mapping"),
    ("sglang", {"attn_dp_size": 2}, "more engines"),
    ("sglang", {"use_ray": True}, "starts and watches"),
    ("sglang", {"dwdp_size": 2}, "weights that are kept elsewhere"),
    ("sglang", {"quantization": "fp8"}, "weight updates of quantised layers"),
    ("sglang", {"kv_cache_dtype": "fp8_e5m2"}, "fewer bits"),
    ("sglang", {"speculative_algorithm": "EAGLE"}, "drafted tokens"),
    ("sglang", {"speculative_draft_model_path": "/draft"}, "drafted tokens"),
    ("sglang", {"enable_custom_logit_processor": True}, "it changes the distribution"),
    ("sglang", {"grammar_backend": "xgrammar"}, "requests say themselves what structure they need"),
    ("sglang", {"preferred_sampling_params": {"top_k": 5}}, "set generating_args"),
    ("sglang", {"json_model_override_args": '{"rope_theta": 1}'}, "set model_args.model_config_kwargs"),
    ("sglang", {"enable_weights_cpu_backup": False}, "weights that did not change"),
    ("sglang", {"hicache_storage_backend": "file"}, "would outlive a weight update"),
    ("sglang", {"offload_group_size": 4}, "layers copied from the host before a weight update; use cpu_offload_gb"),
    ("sglang", {"offload_mode": "sharded_gpu"}, "It may be cpu."),
    ("sglang", {"enable_dsa_fused_indexer": True}, "weights that are kept elsewhere"),
    ("sglang", {"load_format": "flash_rl"}, "expects quantised or shared ones"),
    ("sglang", {"load_format": "expert_pack"}, "expects quantised or shared ones"),
    ("sglang", {"load_format": "presharded"}, "expects quantised or shared ones"),
    ("sglang", {"moe_a2a_backend": "mooncake"}, "fewer bits"),
    ("sglang", {"moe_a2a_backend": "nixl"}, "It may be none or deepep or deepep_v2 or flashinfer or mori or pplx."),
    ("sglang", {"ep_dispatch_algorithm": "fake"}, "random experts"),
    ("sglang", {"dsa_prefill_backend": "flashmla_sparse_q8"}, "fewer bits"),
    ("sglang", {"dsv4_attn_backend": "trtllm"}, "fewer bits"),
    ("sglang", {"prefill_attention_backend": "flex_attention"}, "leaves out windows of attention"),
    ("sglang", {"enable_cp_decode_attn_tp": True}, "weights that are kept elsewhere"),
    ("sglang", {"dcp_replicate_q_proj": True}, "weights that are kept elsewhere"),
    ("sglang", {"delete_ckpt_after_loading": True}, "trainers load the same files"),
]


@pytest.mark.parametrize(("engine", "given", "reason"), REFUSED, ids=[f"{e}-{next(iter(g))}" for e, g, _ in REFUSED])
def test_what_changes_samples_or_log_probs_is_refused_with_the_reason(
    engine: str, given: dict[str, Any], reason: str
) -> None:
    (text,) = said(RULES[engine], **given)
    assert text.startswith(f"actor_infer.strategy_args.strategy_config.{next(iter(given))} cannot be set: ")
    assert reason in text


NESTED: list[tuple[dict[str, Any], str, str]] = [
    ({"additional_config": {"x.y": 1}}, "additional_config.x.y", "vLLM's plugins"),
    ({"attention_config": {"indexer_kv_dtype": "mxfp4"}}, "attention_config.indexer_kv_dtype", "auto or bf16."),
    (
        {"attention_config": {"backend": "FLASH_ATTN", "use_prefill_query_quantization": True}},
        "attention_config.use_prefill_query_quantization",
        "fewer bits",
    ),
    ({"attention_config": {"use_non_causal": True}}, "attention_config.use_non_causal", "changes the distribution"),
    (
        {"mamba_config": {"enable_stochastic_rounding": True}},
        "mamba_config.enable_stochastic_rounding",
        "another form of state",
    ),
    (
        {"aux_output_config": {"enable_return_routed_experts": True}},
        "aux_output_config.enable_return_routed_experts",
        "router_replay",
    ),
    (
        {"compilation_config": {"inductor_passes": {"post_grad_custom_post_pass": "a.b"}}},
        "compilation_config.inductor_passes",
        "changes the distribution",
    ),
    (
        {"compilation_config": {"inductor_compile_config": {"max_autotune": True, "freezing": True}}},
        "compilation_config.inductor_compile_config.freezing",
        "do not reach",
    ),
    ({"compilation_config": {"cache_dir": "/graphs"}}, "compilation_config.cache_dir", "VLLM_CACHE_ROOT"),
    ({"additional_config": {"weight_nz_mode": 2}}, "additional_config.weight_nz_mode", "It may be 0 or 1."),
    ({"additional_config": {"enable_kv_nz": True}}, "additional_config.enable_kv_nz", "never tested here"),
]


@pytest.mark.parametrize(("given", "name", "reason"), NESTED, ids=[name for _, name, _ in NESTED])
def test_keys_of_mappings_are_refused_by_their_own_names(given: dict[str, Any], name: str, reason: str) -> None:
    (text,) = said(VLLM, **given)
    assert text.startswith(f"actor_infer.strategy_args.strategy_config.{name} cannot be set: ") and reason in text


FINE: list[tuple[str, dict[str, Any]]] = [
    *[("vllm", {"quantization": name}) for name in ONLINE_FP8],
    ("vllm", {"kv_cache_dtype": "auto", "dtype": "bfloat16", "generation_config": "auto"}),
    ("vllm", {"kv_cache_dtype": "bfloat16"}),
    ("vllm", {"speculative_config": None, "logits_processors": [], "enable_eplb": False}),
    ("vllm", {"load_format": "dummy"}),
    ("vllm", {"nnodes": 1, "data_parallel_size": 1, "enable_sleep_mode": True, "distributed_executor_backend": "mp"}),
    ("sglang", {"enable_memory_saver": True, "attn_dp_size": 1, "base_gpu_id": 0, "enable_dp_attention": False}),
    ("vllm", {"lora_dtype": "bfloat16", "moe_backend": "triton", "worker_cls": "auto", "config_format": "hf"}),
    ("vllm", {"additional_config": {"weight_nz_mode": 0, "gdn_prefill_backend": "triton"}}),
    ("vllm", {"attention_config": {"backend": "FLASH_ATTN", "use_non_causal": False}, "compilation_config": 3}),
    ("vllm", {"offload_backend": "uva", "offload_group_size": 0, "offload_num_in_group": 1, "offload_params": []}),
    ("sglang", {"kv_cache_dtype": "bf16", "speculative_algorithm": None, "grammar_backend": "none"}),
    ("sglang", {"moe_a2a_backend": "deepep", "ep_dispatch_algorithm": "static", "load_format": "sharded_state"}),
    ("sglang", {"offload_mode": "cpu", "offload_group_size": -1, "cpu_offload_gb": 4}),
    ("sglang", {"json_model_override_args": "{}", "enable_custom_logit_processor": False, "dp_size": 1}),
]


@pytest.mark.parametrize(("engine", "given"), FINE)
def test_values_that_change_nothing_pass(engine: str, given: dict[str, Any]) -> None:
    assert said(RULES[engine], **given) == []


@pytest.mark.parametrize(
    ("engine", "given", "name"),
    [
        ("vllm", {"moe_backend": "FlashInfer-cutlass"}, "moe_backend"),
        ("vllm", {"kernel_config": {"moe_backend": "flashinfer_cutlass"}}, "kernel_config.moe_backend"),
        ("sglang", {"moe_runner_backend": "flashinfer_trtllm"}, "moe_runner_backend"),
    ],
)
def test_kernels_without_biases_are_refused_for_models_that_have_some(
    engine: str, given: dict[str, Any], name: str
) -> None:
    """Neither engine hands unquantised experts' biases to these kernels, nor says so; `auto` takes others."""
    (text,) = said(RULES[engine], model_type="gpt_oss", **given)
    assert f"strategy_config.{name} cannot be set: this kernel leaves out the biases of the model's experts" in text
    assert said(RULES[engine], model_type="qwen3_moe", **given) == said(RULES[engine], **given) == []
    assert said(RULES[engine], model_type="gpt_oss", quantization="awq") == [], "said without a model"


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_random_weights_are_for_engines_that_a_trainer_sends_to(engine: str) -> None:
    (text,) = said(RULES[engine], role_name="rewards.judge", load_format="dummy")
    assert "no trainer sends weights to rewards.judge" in text
