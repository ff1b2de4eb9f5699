"""The tables of environment variables that change what an engine samples or stores, or that break what the strategies
rely on. Beside them are those of every role (`roll.configs.strategies.variables.COMMON`).

Every variable that vLLM 0.32.0 and SGLang 0.5.23 read was read for it, vLLM-Ascend's and torch's by their lists. One
that is in no table changes speed, memory, logs or the last bits of a sum, or belongs to what is refused anyway (drafts,
quantised checkpoints, servers): `tests/unit/distributed/strategy/engine_variables_without_effect.txt` lists them, and a
test fails for a variable of a newer engine that is in neither.
"""

from __future__ import annotations

from collections.abc import Mapping

from roll.configs.strategies.variables import VariableRule, variable_rules

_FEWER_BITS = "log-probs in fewer bits were never tested here"
_RANDOM_EXPERTS = "it sends tokens to other experts than the router's"
_OTHER_DISTRIBUTION = "it changes the distribution, which the trainer's log-probs would not know"
_OTHER_WEIGHTS = "weight updates do not reach weights that are folded, reordered or kept elsewhere"
_EXPERTS = "weight updates do not reach experts that are moved or copied"
_ANOTHER_MODEL = "the engine would have another model than the trainer: set it in model_args"
_HUB = "the engine would look for its model elsewhere than the trainer: set model_download_type: MODELSCOPE"
_OTHER_PICTURES = "trainers would see other pictures"
_MORE_ENGINES = "add devices to device_mapping for more engines"
_PROCESSES = "the worker starts and watches the engine's processes, on one node and on its own devices"
_GIVES_MEMORY = "an engine must be able to give its memory to a trainer"
_QUANTISES = "it quantises what engines compute: vllm's strategy_config.quantization is the one that is shown here"

_BOTH: Mapping[str, VariableRule] = {
    "TORCHINDUCTOR_FREEZING": VariableRule(_OTHER_WEIGHTS),
    # torch asks whether they are set, whatever to
    **dict.fromkeys(
        ("PYTORCH_NO_CUDA_MEMORY_CACHING", "PYTORCH_NO_HIP_MEMORY_CACHING"), VariableRule(_GIVES_MEMORY, ())
    ),
}

VLLM: Mapping[str, VariableRule] = {
    **_BOTH,
    "VLLM_BATCH_INVARIANT": VariableRule("set batch_invariant in strategy_config", is_ours=True),
    "VLLM_FLOAT32_MATMUL_PRECISION": VariableRule(_FEWER_BITS, ("highest",)),
    **variable_rules(_FEWER_BITS, "VLLM_ROCM_FP8_MFMA_PAGE_ATTN VLLM_FLASHINFER_MOE_A2A_LOW_PRECISION_COMBINE"),
    **variable_rules(_FEWER_BITS, "VLLM_DEEPEPLL_NVFP4_DISPATCH VLLM_DEEPEP_V2_ALLOW_MULTIPLE_REDUCTION"),
    **variable_rules(_FEWER_BITS, "VLLM_ROCM_QUICK_REDUCE_QUANTIZATION", "none", is_ours=True),
    # With AITER on, both are on by default, for attention with latent keys and values, also of unquantised models.
    **variable_rules(_FEWER_BITS, "VLLM_ROCM_USE_AITER_FP8BMM VLLM_ROCM_USE_AITER_FP4BMM", is_ours=True),
    **variable_rules(_FEWER_BITS, "VLLM_ROCM_USE_AITER_MOE_A4W4_DSV4"),
    **variable_rules(_QUANTISES, "VLLM_MARLIN_INPUT_DTYPE VLLM_HUMMING_ONLINE_QUANT_CONFIG", "{}"),
    **variable_rules(_QUANTISES, "VLLM_HUMMING_INPUT_QUANT_CONFIG VLLM_HUMMING_USE_F16_ACCUM", "{}"),
    "VLLM_MOE_ROUTING_SIMULATION_STRATEGY": VariableRule(_RANDOM_EXPERTS, ()),
    **variable_rules(_OTHER_WEIGHTS, "VLLM_ROCM_USE_AITER_FUSION_SHARED_EXPERTS VLLM_ROCM_MONO_DECODE"),
    **variable_rules(_OTHER_WEIGHTS, "VLLM_ROCM_AITER_MEGA_MOE_FUSE_SHARED_EXPERTS"),
    **variable_rules(_HUB, "VLLM_USE_MODELSCOPE"),
    "VLLM_MODEL_REDIRECT_PATH": VariableRule(_ANOTHER_MODEL, ()),
    "VLLM_ALLOW_LONG_MAX_MODEL_LEN": VariableRule(
        "positions beyond the model's would be sampled from: set max_position_embeddings, and a rope that reaches "
        "there, in model_args.model_config_kwargs, which trainers read as well"
    ),
    **variable_rules("vllm takes this runner by itself where it can", "VLLM_USE_V2_MODEL_RUNNER"),
    "VLLM_DP_SIZE": VariableRule(_MORE_ENGINES, ("1",)),
    **dict.fromkeys(("VLLM_DP_RANK", "VLLM_DP_RANK_LOCAL"), VariableRule(_MORE_ENGINES, ("0",))),
    **variable_rules(_PROCESSES, "VLLM_ELASTIC_EP_SCALE_UP_LAUNCH"),
    "VLLM_WORKER_MULTIPROC_METHOD": VariableRule(_PROCESSES, ("spawn",), is_ours=True),
    "VLLM_HOST_IP": VariableRule(_PROCESSES, ("127.0.0.1",), is_ours=True),
    # of vLLM-Ascend
    "VLLM_ASCEND_ENABLE_NZ": VariableRule("weight updates need torch's layout", ("0", "1"), is_ours=True),
    **variable_rules(_EXPERTS, "DYNAMIC_EPLB"),
}

SGLANG: Mapping[str, VariableRule] = {
    **_BOTH,
    **variable_rules(
        "log-probs must be those of the distribution that was sampled from, at its temperature",
        "SGLANG_RETURN_ORIGINAL_LOGPROB",
    ),
    "SGLANG_MAX_NEW_TOKENS_LIMIT": VariableRule("set generating_args.max_new_tokens", ("0", "-1")),
    "SGLANG_MAX_THINK_TOKENS": VariableRule(_OTHER_DISTRIBUTION, ("-1",)),
    **variable_rules(_OTHER_DISTRIBUTION, "SGLANG_SANITIZE_NAN_LOGITS"),
    **dict.fromkeys(
        (
            "SGLANG_SKIP_SOFTMAX_PREFILL_THRESHOLD_SCALE_FACTOR",
            "SGLANG_SKIP_SOFTMAX_DECODE_THRESHOLD_SCALE_FACTOR",
        ),
        VariableRule("attention would skip what it takes for small", ("0", "0.0")),
    ),
    "SGLANG_MINIMAX_M3_INDEX_TOPK_FREQ": VariableRule("layers would attend to what earlier ones chose", ("1",)),
    "SGLANG_DSA_PREFILL_DENSE_ATTN_KV_LEN_THRESHOLD": VariableRule(
        "longer prompts would attend to more than the model's index chooses", ("0",)
    ),
    **variable_rules(
        "attention would be dense where the model's is sparse, or the other way round",
        "SGLANG_MINICPM_FORCE_DENSE SGLANG_MINICPM_DENSE_AS_SPARSE",
    ),
    **variable_rules("it leaves out attention", "BIAS_PREP_ONLY"),
    **dict.fromkeys(
        ("SGLANG_REQ_WAITING_TIMEOUT", "SGLANG_REQ_RUNNING_TIMEOUT"),
        VariableRule("answers that take long would be missing", ("0", "-1")),
    ),
    "SGLANG_DEBUG_REVERT_PR": VariableRule("it takes out mended faults", ("0",)),
    **variable_rules(_RANDOM_EXPERTS, "SGLANG_SIMULATE_UNIFORM_EXPERTS SGLANG_SIMULATE_ROUND_ROBIN_EXPERTS"),
    **variable_rules(_FEWER_BITS, "SGLANG_ENABLE_DP_GATHER_FP8 SGLANG_MOE_NVFP4_DISPATCH"),
    **variable_rules(_FEWER_BITS, "DEEP_NORMAL_MODE_USE_INT8_QUANT"),
    **dict.fromkeys(
        ("SGLANG_MORI_DISPATCH_DTYPE", "SGLANG_MORI_COMBINE_DTYPE", "SGLANG_FLASHINFER_MEGAMOE_COMBINE_DTYPE"),
        VariableRule(_FEWER_BITS, ("auto", "bf16")),
    ),
    # INT8 in AMD's images of SGLang
    "ROCM_QUICK_REDUCE_QUANTIZATION": VariableRule(_FEWER_BITS, ("none",), is_ours=True),
    # With AITER on a gfx95 it is on by default, for attention with latent keys and values.
    **variable_rules(_FEWER_BITS, "SGLANG_AITER_FP8_PREFILL_ATTN", is_ours=True),
    "SGLANG_MAMBA_SSM_DTYPE": VariableRule("log-probs with another form of state were never tested here", ("float32",)),
    "SGLANG_MAMBA_CONV_DTYPE": VariableRule(
        "log-probs with another form of state were never tested here", ("bfloat16", "float32")
    ),
    **variable_rules(_QUANTISES, "SGLANG_INT4_WEIGHT SGLANG_CPU_QUANTIZATION SGLANG_HUMMING_USE_F16_ACCUM"),
    **variable_rules(_QUANTISES, "SGLANG_HUMMING_ONLINE_QUANT_CONFIG SGLANG_HUMMING_INPUT_QUANT_CONFIG", "{}", "null"),
    **variable_rules(_OTHER_WEIGHTS, "SGLANG_OPT_FUSE_SWIGLU_INTERLEAVED"),
    "SGLANG_OPT_BF16_FP32_GEMM_ALGO": VariableRule(_OTHER_WEIGHTS, ("cublas", "deep_gemm")),
    **variable_rules("weight updates were never tested here with this loader", "SGLANG_ENABLE_WEIGHT_LOADER_V2"),
    **variable_rules(_HUB, "SGLANG_USE_MODELSCOPE"),
    **dict.fromkeys(
        ("SGLANG_EXTERNAL_MODEL_PACKAGE", "SGLANG_EXTERNAL_MM_MODEL_ARCH", "SGLANG_EXTERNAL_MM_PROCESSOR_PACKAGE"),
        VariableRule(_ANOTHER_MODEL, ()),
    ),
    **dict.fromkeys(
        ("SGLANG_IMAGE_MAX_PIXELS", "SGLANG_RESIZE_RESAMPLE", "VIDEO_MAX_PIXELS"), VariableRule(_OTHER_PICTURES, ())
    ),
    "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN": VariableRule(
        "the engine needs spare positions, and roll checks the length itself", ("1", "true", "yes", "y"), is_ours=True
    ),
    "SGLANG_USE_CPU_ENGINE": VariableRule("the role's device_mapping says", (), is_ours=True),
    **variable_rules(_PROCESSES, "SGLANG_ONE_VISIBLE_DEVICE_PER_PROCESS SGLANG_TEST_SCRIPTED_RUNTIME"),
    "SGLANG_DISTRIBUTED_INIT_METHOD_OVERRIDE": VariableRule(_PROCESSES, ()),
}
