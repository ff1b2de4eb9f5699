"""Functions that the specs of the megatron strategies name."""

from collections.abc import Iterator
from typing import Any

from roll.configs.plan.layout import ParallelSizes, parallel_sizes
from roll.configs.problems import Problem
from roll.configs.sections.cluster import WorkerConfig
from roll.configs.strategies.choice import Choice
from roll.configs.strategies.megatron_checks import (
    cpu_problems,
    megatron_problems,
    megatron_warnings,
    missing_packages,
    ranks_problems,
    repeated_problems,
)
from roll.configs.strategies.megatron_config import MegatronSettings, split_settings
from roll.platforms.table import machine_platform
from roll.utils.text import show

SIZES = {
    "tensor": "tensor_model_parallel_size",
    "pipeline": "pipeline_model_parallel_size",
    "context": "context_parallel_size",
    "expert": "expert_model_parallel_size",
    "expert_tensor": "expert_tensor_parallel_size",
}

HEAD_FACT = "a head for further tokens that is trained (mtp_training_mode)"  # of a saved state


def problems(choice: Choice) -> Iterator[Problem]:
    at, worker = choice.at, choice.worker
    config = worker.strategy_config
    yield from parallel_problems(choice.role.name, worker)
    if choice.role.learns and (optim := worker.training_args.optim) != "adamw_torch":
        key = f"{choice.role.name}.training_args.optim"
        yield Problem(
            f"{key}: {optim} with {worker.strategy_name}, which supports AdamW only. Use fsdp2_train.", (key,)
        )
    if worker.model_args.dtype == "fp16":
        key = f"{choice.role.name}.model_args.dtype"
        yield Problem(f"{key}: fp16 with {worker.strategy_name}, without loss scaling. Use bf16, or fp32.", (key,))
    wrong = list(megatron_problems(at, config))
    if not wrong:
        settings, _ = split_settings(config)
        wrong += ranks_problems(at, settings, worker.num_workers)
        if choice.role.learns and worker.model_args.has_lora:
            wrong += _lora_problems(choice, settings)
        if choice.role.learns and worker.trains_prediction_head:
            wrong += _head_problems(choice, settings)
    yield from wrong
    yield from repeated_problems(at, config, _repeated_values(choice))


def warnings(choice: Choice) -> Iterator[str]:
    yield from megatron_warnings(choice.at, choice.worker.strategy_config)


def machine_problems(choice: Choice) -> Iterator[Problem]:
    """Packages that the settings need, and what Megatron does on GPUs only, where the run is this machine's and it has
    none."""
    if list(megatron_problems(choice.at, choice.worker.strategy_config)):
        return
    settings, _ = split_settings(choice.worker.strategy_config)
    yield from missing_packages(choice.at, settings)
    is_here = choice.num_nodes == 1 and not machine_platform().is_accelerator
    if is_here or choice.platform == "cpu":
        yield from cpu_problems(choice.at, settings)


def sizes(worker: WorkerConfig) -> ParallelSizes:
    counts: dict[str, Any] = {name: max(1, _size(worker, key)) for name, key in SIZES.items()}
    model = counts["tensor"] * counts["pipeline"] * counts["context"]
    return ParallelSizes(data=max(1, worker.num_workers // model), **counts)


def parallel_problems(role: str, worker: WorkerConfig) -> Iterator[Problem]:
    """Sizes that are no whole numbers, or whose product does not divide the ranks."""
    at = f"{role}.strategy_args.strategy_config"
    config, broken = worker.strategy_config, False
    for key in SIZES.values():
        value = 1 if config.get(key) is None else config[key]
        if type(value) is not int or value < 1:
            broken = True
            yield Problem(f"{at}.{key}: {show(value)} must be a whole number from 1 on.", (f"{at}.{key}",))
    if broken:
        return
    model = _size(worker, SIZES["tensor"]) * _size(worker, SIZES["pipeline"]) * _size(worker, SIZES["context"])
    if worker.num_workers % model:
        below, above = worker.num_workers // model * model, -(-worker.num_workers // model) * model
        choices = " or ".join(str(n) for n in (below, above) if n)
        yield Problem(
            f"{role}: {worker.num_workers} ranks do not divide by tensor x pipeline x context parallel = {model}. "
            f"Use {choices} devices in {role}.device_mapping, or smaller sizes in {at}.",
            (f"{role}.device_mapping", f"{role}.world_size", at),
        )


def saved_facts(worker: WorkerConfig, dp_size: int) -> dict[str, object]:
    """Files are read under any parallel sizes. Under the distributed optimizer they hold fp32 weights and moments by
    the parameter's name, whatever dtype and experts; without it they lie otherwise for each."""
    settings, _ = split_settings(worker.strategy_config)
    facts = worker.saved_facts | {"use_distributed_optimizer": settings.use_distributed_optimizer}
    facts[HEAD_FACT] = worker.trains_prediction_head
    if settings.use_distributed_optimizer:
        return {key: value for key, value in facts.items() if key != "dtype"}
    same_ranks = settings.expert_model_parallel_size == 1
    same_ranks = same_ranks and settings.expert_tensor_size == settings.tensor_model_parallel_size
    return facts | {"expert parallel": not same_ranks}


def _lora_problems(choice: Choice, settings: MegatronSettings) -> Iterator[Problem]:
    for word in choice.worker.model_args.lora_target:
        if word.rpartition(".")[2] == "lm_head":
            key, full = (f"{choice.role.name}.model_args.{name}" for name in ("lora_target", "additional_target"))
            yield Problem(f"{key}: {word}: with Megatron the head gets no adapter. {full}: lm_head trains it.", (key,))
    if settings.transformer_impl == "transformer_engine":
        key, impl = f"{choice.role.name}.model_args.lora_target", f"{choice.at}.transformer_impl"
        yield Problem(
            f"{key}: adapters on layers of transformer-engine are not supported yet. Set {impl}: local, or take "
            "deepspeed_train or fsdp2_train, or remove lora_target.",
            (key, impl),
        )
    elif settings.moe_grouped_gemm:
        key, grouped = f"{choice.role.name}.model_args.lora_target", f"{choice.at}.moe_grouped_gemm"
        yield Problem(
            f"{key}: {grouped}: true, whose product reads experts' matrices past their adapters. Set it to false.",
            (key, grouped),
        )


def _head_problems(choice: Choice, settings: MegatronSettings) -> Iterator[Problem]:
    """Checks MTP training against settings that it does not work with, or was not tested with."""
    key = f"{choice.role.name}.mtp_training_mode"
    if settings.transformer_impl != "local":
        other = f"{choice.at}.transformer_impl"
        text = f"{key}: {choice.worker.mtp_training_mode} works with {other}: local only, but it is "
        yield Problem(f"{text}{settings.transformer_impl}. Set local, or set {key} to disabled.", (key, other))


def _repeated_values(choice: Choice) -> dict[str, object]:
    """Return the values that megatron-core's keys must have because other keys set them, as far as they are known
    without the model."""
    dtype, args = choice.worker.model_args.dtype, choice.worker.training_args
    values: dict[str, object] = {"bf16": dtype == "bf16", "fp16": dtype == "fp16"}
    values |= dict.fromkeys(("max_grad_norm", "clip_grad"), choice.max_grad_norm)
    if choice.role.learns:
        micro, per_rank = args.per_device_train_batch_size, args.gradient_accumulation_steps
        values |= {"lr": args.learning_rate, "weight_decay": args.weight_decay, "micro_batch_size": micro}
        values["global_batch_size"] = micro * per_rank * parallel_sizes(choice.worker).data
    return values


def _size(worker: WorkerConfig, key: str) -> int:
    value = worker.strategy_config.get(key, 1)
    return value if type(value) is int else 1
