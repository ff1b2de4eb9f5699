"""Start of vLLM: environment, arguments, and checks of both that do not import vLLM (which takes seconds)."""

import logging
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from roll.configs.plan.engine_limits import default_share
from roll.configs.problems import Problem
from roll.configs.sections.cluster import WorkerConfig
from roll.configs.strategies.choice import Choice
from roll.configs.strategies.model_facts import VLLM_NOT_ON_CPU, VLLM_REFUSED, WITHOUT_PREFIXES
from roll.configs.strategies.model_numbers import text_part, type_of, unsampled
from roll.configs.tables.sight import VisionModel
from roll.platforms.table import NPU
from roll.utils.network import LOOPBACK
from roll.utils.text import show

WORKER_EXTENSION = "roll.distributed.strategy.vllm.worker_extension.RollWorkerExtension"
OWNER_VARIABLE = "ROLL_ENGINE_OWNER_PID"
ADAPTER_NAME, ADAPTER_ID = "policy", 1

_DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
_CPU_KV_CACHE_BYTES = 256 << 20
_CPU_MAX_NUM_SEQS = 256
_PREFILL_TOKENS = 8192  # as vLLM's own server on an H100
_ADAPTER_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)  # for which vLLM has room, and no others

_ASKED_KEYS = {  # keys of text_config that transformers does not read, by model_type
    "glm4v": ("attention_bias", "it would leave out the biases of attention, which these models have"),
    "qwen3_vl_moe": ("norm_topk_prob", "it does not start"),
}

KWARGS, CACHE = "mm_processor_kwargs", "mm_processor_cache_gb"
OLD_CACHE = "disable_mm_preprocessor_cache"  # vLLM's name until 0.8, in YAMLs of ROLL and verl
_SIZES = ("tensor_parallel_size", "pipeline_parallel_size")
_logger = logging.getLogger(__name__)


def worker_environment(on_cpu: bool, directory: Path | None = None) -> dict[str, str]:
    """Variables that the engine's process needs before torch and vllm are imported. `directory`: of the run alone, for
    the engine's sockets."""
    variables = {
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": "WARNING",
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
        "VLLM_HOST_IP": LOOPBACK,  # an engine stays on one node
        "TOKENIZERS_PARALLELISM": "false",
        "VLLM_ROCM_QUICK_REDUCE_QUANTIZATION": "NONE",
        "VLLM_ROCM_USE_AITER_FP8BMM": "0",
        "VLLM_ROCM_USE_AITER_FP4BMM": "0",
    }
    if directory is not None:
        variables["VLLM_RPC_BASE_PATH"] = str(directory)
    if not on_cpu:
        return variables
    return variables | {
        "OMP_NUM_THREADS": "1",
        "OMP_WAIT_POLICY": "PASSIVE",
        "TORCHDYNAMO_DISABLE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # binding fails in containers and with tensor parallelism
        # AsyncLLM has its engine process anyway; this saves one more for the worker
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    }


def environment(role: WorkerConfig, on_cpu: bool, directory: Path) -> dict[str, str]:
    """Return the environment of a worker, for its spec."""
    return worker_environment(on_cpu, directory)


PICTURES = "roll.distributed.strategy.vllm.pictures"
"""Module of engine arguments and prompts for models that see, which vLLM imports only for those."""


def engine_arguments(
    role: WorkerConfig,
    on_cpu: bool,
    seed: int,
    shares_devices: bool = False,
    adapter_rank: int | None = None,
    most_answers: int | None = None,
    vision: VisionModel | None = None,
    shows_pictures: bool = False,
) -> dict[str, Any]:
    """Keyword arguments of AsyncEngineArgs: ours, and over them the user's `strategy_config`. `most_answers`: in flight
    at once. `vision`: how the model sees, if it does."""
    settings = with_new_names({key: value for key, value in role.strategy_config.items() if value is not None})
    pipeline = int(settings.get("pipeline_parallel_size", 1))
    arguments: dict[str, Any] = {
        "dtype": _DTYPES[role.model_args.dtype],
        "seed": seed,
        "tensor_parallel_size": role.num_gpus_per_worker // pipeline,
        "distributed_executor_backend": "mp" if role.num_gpus_per_worker > 1 else "uni",  # never Ray's, also inside Ray
        "enable_prefix_caching": True,
        "disable_log_stats": True,
    }
    if adapter_rank is not None:
        arguments |= {"enable_lora": True, "max_lora_rank": next(r for r in _ADAPTER_RANKS if r >= adapter_rank)}
    if role.model_args.model_config_kwargs:
        arguments["hf_overrides"] = role.model_args.model_config_kwargs
    if on_cpu:
        arguments |= {
            "enforce_eager": True,
            "kv_cache_memory_bytes": _CPU_KV_CACHE_BYTES,
            "max_num_seqs": max(_CPU_MAX_NUM_SEQS, most_answers or 0),
            # vllm 0.32.0 dies on a CPU when a prompt with a seed is prefilled in parts ("CPU Generator does not use
            # offset").
            "enable_chunked_prefill": False,
        }
    else:
        # so that a trainer on the same devices can have the memory
        arguments |= {
            "enable_sleep_mode": True,
            **default_share(role, shares_devices),
            **_batch(settings, most_answers),
        }
    of_pictures: dict[str, Any] = {}
    if vision is not None:
        of_pictures = import_module(PICTURES).picture_arguments(settings, vision, shows_pictures, on_cpu)
    return (
        arguments
        | settings
        | of_pictures
        | {
            "model": role.model_args.model_name_or_path,
            "worker_extension_cls": WORKER_EXTENSION,
            "logprobs_mode": "processed_logprobs",
        }
    )


def with_new_names(settings: Mapping[str, Any]) -> dict[str, Any]:
    """`strategy_config` without the name of older engines."""
    renamed = {key: value for key, value in settings.items() if key != OLD_CACHE}
    if settings.get(OLD_CACHE) is True:
        _logger.info("%s: true is read as %s: 0", OLD_CACHE, CACHE)
        renamed[CACHE] = 0
    return renamed


def _batch(settings: Mapping[str, Any], most_answers: int | None) -> dict[str, int]:
    """Sizes of an engine's batch on a GPU. Without them an AsyncLLM that no server starts has 128 sequences and
    prefills 2,048 tokens at a time (vLLM 0.32, arg_utils.py: ENGINE_CONTEXT is in none of its tables)."""
    tokens = settings.get("max_num_batched_tokens") or _PREFILL_TOKENS
    sizes = {} if most_answers is None else {"max_num_seqs": min(most_answers, tokens)}
    # Prompts that are not prefilled in parts must fit: vLLM knows how long they are.
    return sizes if settings.get("enable_chunked_prefill") is False else sizes | {"max_num_batched_tokens": tokens}


def cpu_model_problems(choice: Choice, model: Mapping[str, Any]) -> Iterator[Problem]:
    """Finds what ends an engine on a machine without GPUs, or makes another model of it: kernels that vLLM has on GPUs
    alone."""
    kind, worker = type_of(text_part(model)), choice.worker
    model_key, kwargs_key = f"{choice.role.name}.model_args.model_name_or_path", f"{choice.at}.enable_prefix_caching"
    if why := VLLM_NOT_ON_CPU.get(kind):
        text = f"{choice.name_key}: vllm cannot sample from {kind} models on a CPU: {why}."
        others = "GPUs" if unsampled(text_part(model)) else "GPUs, or hf_infer"
        yield Problem(f"{text} Use {others}.", (choice.name_key, model_key), "place")
    elif kind in WITHOUT_PREFIXES and worker.strategy_config.get("enable_prefix_caching") is not False:
        yield Problem(
            f"{kwargs_key} is not false: on a CPU vllm shares no prefixes of {kind} models, whose layers carry states, "
            "and does not start. Set it to false, or use hf_infer.",
            (kwargs_key, choice.name_key, model_key),
            "place",
        )


def problems(choice: Choice) -> Iterator[Problem]:
    """Yield the problems of a role with this strategy, for its spec."""
    if choice.role.use == "generate":
        yield from argument_problems(choice.role.name, choice.worker)
        yield from _npu_problems(choice)


def model_problems(choice: Choice, model: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield a type that vLLM is known to fail with, and a config.json without what vLLM goes by, for its spec."""
    path, kind = choice.worker.model_args.model_name_or_path, type_of(text := text_part(model))
    keys = (choice.name_key, f"{choice.role.name}.model_args.model_name_or_path")
    if kind in VLLM_REFUSED:
        why = unsampled(text)
        other = f"sglang, if it has them, or another model: hf_infer cannot either ({why})" if why else "hf_infer"
        refused = f"{choice.name_key}: vLLM cannot sample from {kind} models: {VLLM_REFUSED[kind]}."
        yield Problem(f"{refused} Use {other}.", keys)
        return
    asked, why = _ASKED_KEYS.get(str(model.get("model_type")), ("", ""))
    if asked and text.get(asked) is not True:
        yield Problem(
            f"{choice.name_key}: config.json of {path} has no text_config.{asked}: true, as models of type "
            f"{model['model_type']} have, and vLLM goes by it: {why}. Write it there, or use hf_infer.",
            keys,
        )
    if model.get("architectures") == ["PhimoeForCausalLM"]:
        yield Problem(
            f"{choice.name_key}: config.json of {path} has architectures: [PhimoeForCausalLM], as transformers writes "
            "it. vLLM knows these models as PhiMoEForCausalLM, and does not start with the other name. Write that one "
            "into config.json, or use hf_infer.",
            keys,
        )


def _npu_problems(choice: Choice) -> Iterator[Problem]:
    """Finds keys that mean something else on Ascend, or nothing."""
    reasons = {
        "quantization": "vLLM-Ascend reads weights that were quantised for it, but roll sends unquantised ones",
        "attention_backend": "vLLM-Ascend has its own attention and passes over this key",
    }
    for name, why in reasons.items():
        value = choice.worker.strategy_config.get(name)
        if choice.platform == NPU.name and value not in (None, False):
            key = f"{choice.at}.{name}"
            yield Problem(f"{key}: {show(value)}: {why}. Remove it (platform: npu).", (key, "platform"))


def argument_problems(role_name: str, role: WorkerConfig) -> Iterator[Problem]:
    """Keys of `strategy_config` that AsyncEngineArgs does not take, or that are not the user's to set."""
    at = f"{role_name}.strategy_args.strategy_config"
    from roll.configs.strategies import tested  # a table that no engine reads

    yield from tested.argument_problems("vllm", role_name, role, (OLD_CACHE,))
    if not role.strategy_config.keys().isdisjoint((KWARGS, OLD_CACHE)):
        yield from import_module(PICTURES).picture_problems(at, role.strategy_config)
    sizes = [role.strategy_config.get(key) or 1 for key in _SIZES]
    if any(role.strategy_config.get(key) is not None for key in _SIZES) and all(type(size) is int for size in sizes):
        product = sizes[0] * sizes[1]
        if product != role.num_gpus_per_worker and not (sizes[0] == 1 and role.num_gpus_per_worker % sizes[1] == 0):
            yield Problem(
                f"{role_name}.num_gpus_per_worker is {role.num_gpus_per_worker}, but tensor x pipeline parallel in "
                f"{at} is {product}. Set num_gpus_per_worker: {product}, or leave the sizes out.",
                (f"{role_name}.num_gpus_per_worker", *(f"{at}.{key}" for key in _SIZES)),
            )
