"""Which environment variables are refused, and that every variable of the installed engines has been read."""

import re
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

import pytest

from roll.configs.strategies.spec import StrategySpec
from roll.configs.strategies.table import spec_of
from roll.configs.strategies.variables import COMMON, VariableRule, inherited, refused_variables
from roll.distributed.strategy.engine_variables import SGLANG, VLLM
from roll.distributed.strategy.sglang import args as sglang_args
from roll.distributed.strategy.vllm import args as vllm_args
from roll.errors import ConfigError

_LISTS = Path(__file__).with_name("engine_variables_without_effect.txt")
RULES = {"vllm": VLLM, "sglang": SGLANG}
READ_BY_OTHERS = {  # torch and vLLM-Ascend, which are not the engines' own sources
    *("DYNAMIC_EPLB", "VLLM_ASCEND_ENABLE_NZ", "TORCHINDUCTOR_FREEZING"),
    *("PYTORCH_NO_CUDA_MEMORY_CACHING", "PYTORCH_NO_HIP_MEMORY_CACHING"),
}

# Folders of an engine that its workers never import, and a script.
_NOT_ENGINE = {
    "vllm": {"benchmarks", "collect_env.py"},
    "sglang": {"benchmark", "cli", "lang", "multimodal_gen", "test"},
}
_NAME = r"[\"']([A-Z][A-Z0-9_]{2,})[\"']"
_READ = re.compile(
    rf"(?:getenv|environ\.(?:get|setdefault|pop)|\w*env\w*)\(\s*{_NAME}|environ\[\s*{_NAME}\s*\]"
    rf"|{_NAME}\s+(?:not )?in os\.environ"
)
_DECLARED = {  # how the file of an engine that lists them does
    "vllm": re.compile(r"^    \"([A-Z][A-Z0-9_]+)\":", re.MULTILINE),
    "sglang": re.compile(
        r"^    ([A-Z][A-Z0-9_]+) = Env|^    \"([A-Z][A-Z0-9_]+)\": _Deprecated|^ {8}.*deprecated_name=\"([A-Z0-9_]+)\"",
        re.MULTILINE,
    ),
}
_LISTED_IN = {"vllm": "envs.py", "sglang": "srt/environ.py"}


def folder_of(engine: str) -> Path:
    """Where the engine is installed; skips the test if it is not."""
    spec = find_spec(engine)
    if spec is None or not spec.submodule_search_locations:
        pytest.skip(f"{engine} is not installed")
    return Path(next(iter(spec.submodule_search_locations)))


def declared_by(engine: str) -> set[str]:
    """Names of the variables that the engine's own list has."""
    text = (folder_of(engine) / _LISTED_IN[engine]).read_text(encoding="utf-8")
    return {name for match in _DECLARED[engine].finditer(text) for name in match.groups() if name}


def read_by(engine: str) -> set[str]:
    """Names of all variables in its source texts."""
    root, found = folder_of(engine), list[re.Match[str]]()
    for path in root.rglob("*.py"):
        if path.relative_to(root).parts[0] not in _NOT_ENGINE[engine]:
            text = path.read_text(encoding="utf-8", errors="replace")
            found += _READ.finditer(text) if "env" in text else ()
    return declared_by(engine) | {name for match in found for name in match.groups() if name}


def without_effect(engine: str) -> list[str]:
    sections = _LISTS.read_text(encoding="utf-8").split("# ")
    (words,) = [section.partition("\n")[2] for section in sections if section.startswith(f"{engine}:")]
    return words.split()


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_every_variable_of_the_engines_own_list_is_in_one_of_ours(engine: str) -> None:
    """A new variable fails here until somebody has read whether it changes what is sampled or stored."""
    declared = declared_by(engine)
    assert len(declared) > 300
    assert sorted(declared - {*RULES[engine]} - {*COMMON} - {*without_effect(engine)}) == []


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_every_variable_that_the_installed_engine_reads_is_in_one_list(engine: str) -> None:
    """Those that no list of the engine has, too; and no variable is in a list of ours that nobody reads."""
    known = read_by(engine)
    listed, rules = without_effect(engine), {*RULES[engine]}
    assert sorted(known - rules - {*COMMON} - {*listed}) == []
    assert sorted({*listed} - known) == [] and rules - known <= READ_BY_OTHERS
    assert {*listed} & (rules | {*COMMON}) == set() and listed == sorted(set(listed))


def said(rules: Mapping[str, VariableRule], **variables: str) -> list[str]:
    return [f"{name}: {why}" for name, why in refused_variables(rules, variables)]


REFUSED = [
    ("vllm", "VLLM_BATCH_INVARIANT", "1", "set batch_invariant in strategy_config. Remove it, or set it to 0."),
    (
        "vllm",
        "VLLM_FLOAT32_MATMUL_PRECISION",
        "high",
        "fewer bits were never tested here. Remove it, or set it to highest.",
    ),
    ("vllm", "VLLM_ROCM_QUICK_REDUCE_QUANTIZATION", "INT4", "Remove it, or set it to 0 or none."),
    ("vllm", "VLLM_MOE_ROUTING_SIMULATION_STRATEGY", "uniform_random", "other experts than the router's. Remove it."),
    ("vllm", "VLLM_MODEL_REDIRECT_PATH", "/models.json", "another model than the trainer"),
    ("vllm", "VLLM_USE_MODELSCOPE", "True", "model_download_type: MODELSCOPE"),
    ("vllm", "VLLM_ALLOW_LONG_MAX_MODEL_LEN", "1", "model_args.model_config_kwargs"),
    ("vllm", "VLLM_DP_SIZE", "2", "add devices to device_mapping"),
    ("vllm", "VLLM_WORKER_MULTIPROC_METHOD", "fork", "starts and watches the engine's processes"),
    ("vllm", "VLLM_HUMMING_ONLINE_QUANT_CONFIG", '{"dtype": "int4"}', "it quantises what engines compute"),
    ("vllm", "VLLM_ASCEND_ENABLE_NZ", "2", "weight updates need torch's layout. Remove it, or set it to 0 or 1."),
    ("vllm", "TORCHINDUCTOR_FREEZING", "1", "weight updates do not reach"),
    ("vllm", "PYTORCH_NO_CUDA_MEMORY_CACHING", "0", "give its memory to a trainer"),
    ("sglang", "SGLANG_RETURN_ORIGINAL_LOGPROB", "true", "the distribution that was sampled from"),
    ("sglang", "SGL_RETURN_ORIGINAL_LOGPROB", "true", "the distribution that was sampled from"),
    ("sglang", "SGLANG_MAX_NEW_TOKENS_LIMIT", "64", "set generating_args.max_new_tokens"),
    ("sglang", "SGLANG_SIMULATE_UNIFORM_EXPERTS", "yes", "other experts than the router's"),
    ("sglang", "SGLANG_MAMBA_SSM_DTYPE", "bfloat16", "another form of state"),
    ("sglang", "SGLANG_SKIP_SOFTMAX_DECODE_THRESHOLD_SCALE_FACTOR", "1.5", "skip what it takes for small"),
    ("sglang", "SGLANG_OPT_FUSE_SWIGLU_INTERLEAVED", "1", "weight updates do not reach"),
    ("sglang", "SGLANG_REQ_RUNNING_TIMEOUT", "30", "answers that take long would be missing"),
    ("sglang", "SGLANG_MORI_DISPATCH_DTYPE", "fp8", "fewer bits"),
    ("sglang", "SGLANG_IMAGE_MAX_PIXELS", "1000", "trainers would see other pictures"),
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
    ("vllm", {"VLLM_ROCM_QUICK_REDUCE_QUANTIZATION": "NONE", "VLLM_MODEL_REDIRECT_PATH": "", "VLLM_DP_SIZE": "1"}),
    ("vllm", {"VLLM_LOGGING_LEVEL": "INFO", "VLLM_ROCM_USE_AITER": "1", "SGLANG_RETURN_ORIGINAL_LOGPROB": "1"}),
    ("sglang", {"SGLANG_RETURN_ORIGINAL_LOGPROB": "n", "SGLANG_MORI_COMBINE_DTYPE": "bf16", "SGLANG_LOG_GC": "1"}),
    ("sglang", {"VLLM_BATCH_INVARIANT": "1", "SGLANG_MAX_THINK_TOKENS": "-1", "TORCHINDUCTOR_FREEZING": "0"}),
    ("hf_infer", {"VLLM_DP_SIZE": "2", "TORCHINDUCTOR_FREEZING": "1", "OMP_NUM_THREADS": "4", "NCCL_DEBUG": "INFO"}),
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
        names = {name for name, rule in rules.items() if rule.is_ours} - {"VLLM_ASCEND_ENABLE_NZ"}  # the platform's
        assert names <= {name for environment in ours[engine] for name in environment}


def test_rules_of_a_strategy_of_the_users_own() -> None:
    spec = StrategySpec("own", {}, variables=f"{__name__}:OWN")
    assert said(spec.variable_rules(), OWN_BITS="4") == ["OWN_BITS: too few. Remove it, or set it to 16."]
    with pytest.raises(ConfigError, match="strategy own: .*:FINE is no mapping of names to VariableRules"):
        StrategySpec("own", {}, variables=f"{__name__}:FINE").variable_rules()


OWN = {"OWN_BITS": VariableRule("too few", ("16",))}
