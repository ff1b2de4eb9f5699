"""Which engine arguments are refused."""

from collections.abc import Mapping
from typing import Any

import pytest

from roll.configs.sections.cluster import WorkerConfig
from roll.distributed.strategy.engine_options import ONLINE_FP8, SGLANG, VLLM, Rule, refusals

RULES = {"vllm": VLLM, "sglang": SGLANG}


def said(rules: Mapping[str, Rule], role_name: str = "actor_infer", **given: Any) -> list[str]:
    role = WorkerConfig.model_validate(
        {
            "model_args": {"model_name_or_path": "m", "dtype": "bf16"},
            "strategy_args": {"strategy_name": "vllm", "strategy_config": given},
        }
    )
    return [problem.text for problem in refusals(rules, role_name, role)]


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
    ("vllm", {"offload_backend": "prefetch"}, "It may be auto or uva."),
    ("vllm", {"load_format": "IPC_cache"}, "expects quantised or shared ones, or other names"),
    ("vllm", {"worker_cls": "a.B"}, "It may be auto."),
    ("vllm", {"lora_dtype": "float16"}, "adapters are stored as the model's weights are. It may be auto."),
    ("vllm", {"nnodes": 2}, "an engine stays on one node"),
    ("vllm", {"distributed_executor_backend": "ray"}, "It may be mp or uni."),
    ("vllm", {"enable_sleep_mode": False}, "give its memory to a trainer"),
    ("sglang", {"enable_memory_saver": False}, "give its memory to a trainer"),
    ("sglang", {"base_gpu_id": 2}, "device_mapping"),
    ("sglang", {"use_ray": True}, "starts and watches"),
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
    ("sglang", {"load_format": "flash_rl"}, "expects quantised or shared ones"),
    ("sglang", {"load_format": "presharded"}, "expects quantised or shared ones"),
]


@pytest.mark.parametrize(("engine", "given", "reason"), REFUSED, ids=[f"{e}-{next(iter(g))}" for e, g, _ in REFUSED])
def test_what_changes_samples_or_log_probs_is_refused_with_the_reason(
    engine: str, given: dict[str, Any], reason: str
) -> None:
    (text,) = said(RULES[engine], **given)
    assert text.startswith(f"actor_infer.strategy_args.strategy_config.{next(iter(given))} cannot be set: ")
    assert reason in text


FINE: list[tuple[str, dict[str, Any]]] = [
    *[("vllm", {"quantization": name}) for name in ONLINE_FP8],
    ("vllm", {"kv_cache_dtype": "auto", "dtype": "bfloat16", "generation_config": "auto"}),
    ("vllm", {"kv_cache_dtype": "bfloat16"}),
    ("vllm", {"speculative_config": None, "logits_processors": [], "enable_eplb": False}),
    ("vllm", {"load_format": "dummy"}),
    ("vllm", {"nnodes": 1, "data_parallel_size": 1, "enable_sleep_mode": True, "distributed_executor_backend": "mp"}),
    ("sglang", {"enable_memory_saver": True, "attn_dp_size": 1, "base_gpu_id": 0, "enable_dp_attention": False}),
    ("vllm", {"lora_dtype": "bfloat16", "moe_backend": "triton", "worker_cls": "auto", "config_format": "hf"}),
    ("vllm", {"offload_backend": "uva", "offload_group_size": 0, "offload_num_in_group": 1, "offload_params": []}),
    ("sglang", {"kv_cache_dtype": "bf16", "speculative_algorithm": None, "grammar_backend": "none"}),
    ("sglang", {"offload_mode": "cpu", "offload_group_size": -1, "cpu_offload_gb": 4}),
    ("sglang", {"json_model_override_args": "{}", "enable_custom_logit_processor": False, "dp_size": 1}),
]


@pytest.mark.parametrize(("engine", "given"), FINE)
def test_values_that_change_nothing_pass(engine: str, given: dict[str, Any]) -> None:
    assert said(RULES[engine], **given) == []


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_random_weights_are_for_engines_that_a_trainer_sends_to(engine: str) -> None:
    (text,) = said(RULES[engine], role_name="rewards.judge", load_format="dummy")
    assert "no trainer sends weights to rewards.judge" in text
