"""Which environment variables are refused."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from roll.configs.strategies.spec import StrategySpec
from roll.configs.strategies.table import spec_of
from roll.configs.strategies.variables import SGLANG, VLLM, VariableRule, inherited, refused_variables
from roll.distributed.strategy.sglang import args as sglang_args
from roll.distributed.strategy.vllm import args as vllm_args

RULES = {"vllm": VLLM, "sglang": SGLANG}


def said(rules: Mapping[str, VariableRule], **variables: str) -> list[str]:
    return [f"{name}: {why}" for name, why in refused_variables(rules, variables)]


REFUSED = [
    ("vllm", "VLLM_BATCH_INVARIANT", "1", "set batch_invariant in strategy_config. Remove it, or set it to 0."),
    ("vllm", "VLLM_FLOAT32_MATMUL_PRECISION", "high", "were never tested here. Remove it, or set it to highest."),
    ("vllm", "VLLM_ROCM_QUICK_REDUCE_QUANTIZATION", "INT4", "Remove it, or set it to 0 or none."),
    ("vllm", "VLLM_USE_MODELSCOPE", "True", "model_download_type: MODELSCOPE"),
    ("vllm", "VLLM_ALLOW_LONG_MAX_MODEL_LEN", "1", "model_args.model_config_kwargs"),
    ("vllm", "VLLM_DP_SIZE", "2", "add devices to device_mapping"),
    ("vllm", "VLLM_WORKER_MULTIPROC_METHOD", "fork", "starts and watches the engine's processes"),
    ("sglang", "SGLANG_RETURN_ORIGINAL_LOGPROB", "true", "the distribution that was sampled from"),
    ("sglang", "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN", "0", "needs spare positions"),
]


@pytest.mark.parametrize(("engine", "name", "value", "reason"), REFUSED, ids=[f"{e}-{n}" for e, n, _, _ in REFUSED])
def test_what_changes_samples_or_log_probs_is_refused_with_the_reason(
    engine: str, name: str, value: str, reason: str
) -> None:
    (text,) = said(spec_of(engine).variable_rules(), **{name: value})
    assert text.startswith(f"{name}: ") and reason in text


FINE = [
    ("vllm", {"VLLM_BATCH_INVARIANT": "0", "VLLM_FLOAT32_MATMUL_PRECISION": "HIGHEST", "VLLM_USE_MODELSCOPE": "False"}),
    ("vllm", {"VLLM_ROCM_QUICK_REDUCE_QUANTIZATION": "NONE", "VLLM_USE_MODELSCOPE": "", "VLLM_DP_SIZE": "1"}),
    ("vllm", {"VLLM_LOGGING_LEVEL": "INFO", "VLLM_ROCM_USE_AITER": "1", "SGLANG_RETURN_ORIGINAL_LOGPROB": "1"}),
    ("sglang", {"SGLANG_RETURN_ORIGINAL_LOGPROB": "n", "SGLANG_LOG_GC": "1", "VLLM_BATCH_INVARIANT": "1"}),
    ("hf_infer", {"VLLM_DP_SIZE": "2", "OMP_NUM_THREADS": "4", "NCCL_DEBUG": "INFO"}),
]


@pytest.mark.parametrize(("strategy", "variables"), FINE)
def test_values_that_change_nothing_and_variables_of_another_engine_pass(
    strategy: str, variables: dict[str, str]
) -> None:
    assert said(spec_of(strategy).variable_rules(), **variables) == []


@pytest.mark.parametrize("strategy", ["vllm", "sglang", "fsdp2_train", "hf_infer"])
def test_numbers_and_places_of_every_role_are_its_own(strategy: str) -> None:
    rules = spec_of(strategy).variable_rules()
    for name, value, reason in (
        ("TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "1", "10 bits of TF32"),
        ("NVIDIA_TF32_OVERRIDE", "1", "10 bits of TF32"),
        ("ONEDNN_DEFAULT_FPMATH_MODE", "BF16", "Remove it, or set it to strict."),
        ("CUDA_VISIBLE_DEVICES", "0", "the role's device_mapping"),
        ("ASCEND_RT_VISIBLE_DEVICES", "0,1", "the role's device_mapping"),
        ("WORLD_SIZE", "1", "roll sets it for each worker"),
        ("DS_ACCELERATOR", "cpu", "roll sets it for each worker"),
        ("INF_NAN_MODE_ENABLE", "0", "what overflows would be the largest number or 0"),
        ("INF_NAN_MODE_FORCE_DISABLE", "1", "what overflows would be the largest number or 0"),
    ):
        (text,) = said(rules, **{name: value})
        assert reason in text
    assert said(rules, INF_NAN_MODE_ENABLE="1", INF_NAN_MODE_FORCE_DISABLE="0") == []
    assert said(rules, NVIDIA_TF32_OVERRIDE="0", ONEDNN_DEFAULT_FPMATH_MODE="STRICT") == []


def test_what_roll_sets_itself_is_fine_and_not_looked_for_in_a_workers_environment() -> None:
    """A worker has all of them in its environment, and so have the engine's own processes."""
    ours = {
        "vllm": [vllm_args.worker_environment(on_cpu, Path("/r")) for on_cpu in (False, True)],
        "sglang": [sglang_args.worker_environment(on_cpu, 2, Path("/r")) for on_cpu in (False, True)],
    }
    for engine, environments in ours.items():
        for environment in environments:
            rules = inherited(spec_of(engine).variable_rules())
            assert said(rules, **environment, CUDA_VISIBLE_DEVICES="1", RANK="0", LOCAL_RANK="1") == []
    for engine, rules in RULES.items():
        names = {name for name, rule in rules.items() if rule.is_ours}
        assert names <= {name for environment in ours[engine] for name in environment}


def test_rules_of_a_strategy_of_the_users_own() -> None:
    spec = StrategySpec("own", {}, variables={"OWN_BITS": VariableRule("too few", ("16",))})
    assert said(spec.variable_rules(), OWN_BITS="4") == ["OWN_BITS: too few. Remove it, or set it to 16."]
