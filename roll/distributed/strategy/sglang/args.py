"""Start of SGLang: environment, arguments, and checks of both that do not import SGLang (which takes many seconds)."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from roll.configs.plan.engine_limits import default_share
from roll.configs.problems import Problem
from roll.configs.sections.cluster import WorkerConfig
from roll.configs.strategies.choice import Choice
from roll.configs.strategies.model_numbers import ATTENTION_CAP, attention_cap, text_part, type_of

SOCKETS_VARIABLE = "ROLL_SOCKETS_DIRECTORY"
REPACKS = "it repacks layers after every weight update"
STILL_RETIRING = "requests that have ended are still leaving the engine"  # asked again a moment later, they have left
SPARE_POSITIONS = 8  # SGLang keeps some positions of context_length for itself (0.5.23: 2 of them, 6 of the prompt's)

_DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
_CPU_KV_CACHE_TOKENS = 32_768
_CPU_MAX_RUNNING_REQUESTS = 256
_LARGEST_GRAPH = 512
_GRAPH_SIZES = {"cuda_graph_config", "cuda_graph_bs_decode", "cuda_graph_max_bs_decode"}
_BACKENDS = ("attention_backend", "prefill_attention_backend", "decode_attention_backend")
_WITH_CAPS = ("fa3", "flashinfer", "triton", "aiter")  # by reading: torch_native, trtllm_mha and others ignore a cap
_BITS_OF_ITS_OWN = ("deepep", "pplx")  # what they send to experts has a number format apart from the weights'


def worker_environment(on_cpu: bool, num_devices: int = 1, directory: Path | None = None) -> dict[str, str]:
    """Variables that the worker's process needs before torch and sglang are imported. `directory`: of the run alone,
    for the engine's sockets."""
    variables = {
        "TOKENIZERS_PARALLELISM": "false",
        "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN": "1",  # for the spare positions; the strategy checks the length
        "SGLANG_AITER_FP8_PREFILL_ATTN": "0",
        "ROCM_QUICK_REDUCE_QUANTIZATION": "NONE",
    }
    if directory is not None:
        variables[SOCKETS_VARIABLE] = str(directory)
    if not on_cpu:
        return variables
    variables |= {
        "SGLANG_USE_CPU_ENGINE": "1",
        "OMP_NUM_THREADS": "1",
        "OMP_WAIT_POLICY": "PASSIVE",
        "TORCHDYNAMO_DISABLE": "1",
    }
    if num_devices > 1:  # else every rank would bind all cores
        variables["SGLANG_CPU_OMP_THREADS_BIND"] = "|".join(str(rank) for rank in range(num_devices))
    return variables


def environment(role: WorkerConfig, on_cpu: bool, directory: Path) -> dict[str, str]:
    """Return the environment of a worker, for its spec."""
    return worker_environment(on_cpu, role.num_gpus_per_worker, directory)


def engine_arguments(
    role: WorkerConfig, on_cpu: bool, seed: int, shares_devices: bool = False, most_answers: int | None = None
) -> dict[str, Any]:
    """Keyword arguments of ServerArgs: ours, and over them the user's `strategy_config`. `most_answers`: in flight at
    once."""
    settings = {key: value for key, value in role.strategy_config.items() if value is not None}
    arguments: dict[str, Any] = {
        "dtype": _DTYPES[role.model_args.dtype],
        "random_seed": seed,
        "tp_size": role.num_gpus_per_worker,
        "log_level": "error",
        "skip_server_warmup": True,
        "sleep_on_idle": True,
        "enable_dsa_fused_indexer": False,
        "dcp_replicate_q_proj": False,
    }
    if settings.get("moe_a2a_backend") in _BITS_OF_ITS_OWN:
        settings["deepep_dispatcher_output_dtype"] = "bf16"  # auto: fp8, unless the experts' kernels are DeepGEMM's
    if role.model_args.model_config_kwargs:
        arguments["json_model_override_args"] = json.dumps(role.model_args.model_config_kwargs)
    if on_cpu:
        arguments |= {
            "attention_backend": "torch_native",
            "disable_overlap_schedule": True,
            "disable_cuda_graph": True,
            "max_total_tokens": _CPU_KV_CACHE_TOKENS,
            "max_running_requests": max(_CPU_MAX_RUNNING_REQUESTS, most_answers or 0),
        }
    else:  # so that a trainer on the same devices can have the memory, and the weights come back as they were
        arguments |= {"enable_memory_saver": True, "enable_weights_cpu_backup": True}
        arguments |= default_share(role, shares_devices)
        if most_answers is not None and not _GRAPH_SIZES & settings.keys():
            # SGLang's own limit is 256 on an 80 GB GPU, above which batches run without a graph.
            arguments["cuda_graph_max_bs_decode"] = min(most_answers, _LARGEST_GRAPH)
    return (
        arguments
        | settings
        | {
            "model_path": role.model_args.model_name_or_path,
            "device": "cpu" if on_cpu else "cuda",
            "sampling_backend": "pytorch",
            "skip_tokenizer_init": False,
        }
    )


def problems(choice: Choice) -> Iterator[Problem]:
    """Yield the problems of a role with this strategy, for its spec."""
    if choice.role.use == "generate":
        yield from argument_problems(choice.role.name, choice.worker)


def model_problems(choice: Choice, model: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield the problems of an engine with this model, for its spec."""
    kind = type_of(text := text_part(model))
    if attention_cap(text) is None:
        return
    config = choice.worker.strategy_config
    if any((config.get(key) or config.get(_BACKENDS[0])) not in _WITH_CAPS for key in _BACKENDS[1:]):
        known = f"{', '.join(_WITH_CAPS[:-1])} or {_WITH_CAPS[-1]}"
        yield Problem(
            f"{choice.at}.{_BACKENDS[0]} is not {known}: sglang's other kernels leave out the soft cap on attention of "
            f"{kind} models ({ATTENTION_CAP}), and it chooses some of them by itself. Set it, or use vllm or hf_infer "
            "(on a CPU: these alone).",
            (*(f"{choice.at}.{key}" for key in _BACKENDS), f"{choice.role.name}.model_args.model_name_or_path"),
        )


def argument_problems(role_name: str, role: WorkerConfig) -> Iterator[Problem]:
    """Keys of `strategy_config` that ServerArgs does not have, or that are not the user's to set."""
    from roll.configs.strategies import tested  # a table that no engine reads

    yield from tested.argument_problems("sglang", role_name, role)
    at = f"{role_name}.strategy_args.strategy_config"
    yield from _size_problems(role_name, role, at)


def _size_problems(role_name: str, role: WorkerConfig, at: str) -> Iterator[Problem]:
    size, devices = role.strategy_config.get("tp_size"), role.num_gpus_per_worker
    if type(size) is int and size != devices:
        yield Problem(
            f"{role_name}.num_gpus_per_worker is {devices}, but tp_size in {at} is {size}. Set "
            f"num_gpus_per_worker: {size}, or leave tp_size out.",
            (f"{role_name}.num_gpus_per_worker", f"{at}.tp_size"),
        )
