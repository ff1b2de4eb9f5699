"""What only this machine can tell: models, packages, directories. A dry run lists it as a warning, a real run
refuses to start."""

import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from roll.configs.algorithm import AlgorithmConfig
from roll.configs.cluster import WorkerConfig
from roll.configs.deepspeed import DeepSpeedFacts, deepspeed_problems
from roll.configs.derive import model_roles
from roll.configs.megatron import split_settings
from roll.configs.megatron_checks import (
    ModelFacts,
    cpu_problems,
    megatron_problems,
    megatron_warnings,
    ranks_problems,
    repeated_problems,
    sizes_problems,
)
from roll.configs.parallel import parallel_sizes
from roll.configs.problems import Problem
from roll.configs.trainer_kinds import deepspeed_misfits, megatron_misfits
from roll.distributed.strategy.table import engine_problems, strategy_problems
from roll.models.megatron.family_table import family_problem
from roll.pipeline.model_files import is_hub_id, read_model_config
from roll.pipeline.tracking.build import missing_logins, tracker_problems
from roll.utils.paths import look_at


@dataclass(frozen=True)
class MachineReport:
    """`problems` stop a real run. `unchecked` could not be looked at from here, each with the reason."""

    problems: tuple[Problem, ...]
    unchecked: tuple[str, ...]


def role_strategy_problems(config: AlgorithmConfig) -> list[Problem]:
    """What is wrong with the choice and the settings of every role's strategy, whatever the machine."""
    found: list[Problem] = []
    for role, worker in model_roles(config).items():
        found += strategy_problems(config.roles[role], worker)
        if (worker.strategy_name or "").startswith("deepspeed"):
            found += deepspeed_misfits(f"{role}.strategy_args.strategy_config", worker.strategy_config)
            found += deepspeed_problems(role, worker.strategy_config, deepspeed_facts(config, role, worker))
        if (worker.strategy_name or "").startswith("megatron"):
            at = f"{role}.strategy_args.strategy_config"
            found += megatron_misfits(at, worker.strategy_config)
            wrong = list(megatron_problems(at, worker.strategy_config))
            if not wrong:
                wrong += ranks_problems(at, split_settings(worker.strategy_config)[0], worker.num_workers)
            found += [*wrong, *repeated_problems(at, worker.strategy_config, _repeated_values(config, role, worker))]
    return found


def role_strategy_warnings(config: AlgorithmConfig) -> list[str]:
    """What a role's strategy takes otherwise than it is written."""
    found: list[str] = []
    for role, worker in model_roles(config).items():
        if (worker.strategy_name or "").startswith("megatron"):
            found += megatron_warnings(f"{role}.strategy_args.strategy_config", worker.strategy_config)
    return found


def _repeated_values(config: AlgorithmConfig, role: str, worker: WorkerConfig) -> dict[str, object]:
    """What keys of megatron-core's that are set elsewhere have to be, where that is known without the model."""
    dtype = worker.model_args.dtype
    values: dict[str, object] = {"bf16": dtype == "bf16", "fp16": dtype == "fp16"}
    values |= dict.fromkeys(("max_grad_norm", "clip_grad"), config.max_grad_norm)
    if config.roles[role].learns:
        args = worker.training_args
        micro, per_rank = args.per_device_train_batch_size, args.gradient_accumulation_steps
        values |= {"lr": args.learning_rate, "weight_decay": args.weight_decay, "micro_batch_size": micro}
        values["global_batch_size"] = micro * per_rank * parallel_sizes(worker).data
    return values


def deepspeed_facts(config: AlgorithmConfig, role: str, worker: WorkerConfig) -> DeepSpeedFacts:
    """What a role's DeepSpeed configuration must agree with."""
    if not config.roles[role].learns:
        return DeepSpeedFacts(worker.model_args.dtype)
    args = worker.training_args
    return DeepSpeedFacts(
        dtype=worker.model_args.dtype,
        micro_batch_size=args.per_device_train_batch_size,
        accumulation=args.gradient_accumulation_steps,
        dp_size=parallel_sizes(worker).data,
        max_grad_norm=config.max_grad_norm,
    )


def machine_report(config: AlgorithmConfig) -> MachineReport:
    problems: list[Problem] = []
    unchecked: list[str] = []
    for role, worker in model_roles(config).items():
        problems += engine_problems(config.roles[role], worker)
        problems += _device_problems(config, role, worker)
        model, why_not = read_model_config(worker.model_args.model_name_or_path)
        sizes = parallel_sizes(worker)
        if model is not None:
            problems += _shape_problems(config, role, worker, model)
            continue
        if (worker.strategy_name or "").startswith("megatron"):
            unchecked.append(f"{role}: whether Megatron knows the model's family ({why_not}).")
        if max(sizes.tensor, sizes.pipeline, sizes.expert) > 1:
            unchecked.append(f"{role}: heads and layers against the parallel sizes ({why_not}).")
    tracking = tracker_problems(config.track_with, config.tracker_kwargs)
    tracking += missing_logins(config.track_with, config.tracker_kwargs)
    problems += [Problem(text, ("track_with",)) for text in tracking]
    problems += [
        *_model_problems(config),
        *_python_problems(),
        *_directory_problems(config),
        *_resume_problems(config),
    ]
    return MachineReport(tuple(problems), tuple(unchecked))


def _model_problems(config: AlgorithmConfig) -> Iterator[Problem]:
    seen: set[str] = set()
    for role, worker in model_roles(config).items():
        name = worker.model_args.model_name_or_path
        if name is None or name in seen or is_hub_id(name):
            continue
        seen.add(name)
        key = _model_key(config, role, worker)
        look, inside = look_at(name), look_at(Path(name, "config.json"))
        if unclear := next((each.why for each in (look, inside) if each.kind in ("hidden", "impossible")), None):
            yield Problem(f"{key}: {unclear}. Choose another directory, or give a hub id (owner/name).", (key,))
        elif not look.is_directory:
            yield Problem(
                f"{key}: there is no model directory {name}. Correct the path, or give a hub id (owner/name).", (key,)
            )
        elif not inside.is_file:
            yield Problem(f"{key}: {name} holds no config.json, so it is no model directory.", (key,))


def _model_key(config: AlgorithmConfig, role: str, worker: WorkerConfig) -> str:
    name = worker.model_args.model_name_or_path
    named = (key for key in config.roles[role].model_keys if getattr(config, key) == name)
    return next(named, f"{role}.model_args.model_name_or_path")


def _shape_problems(
    config: AlgorithmConfig, role: str, worker: WorkerConfig, model: Mapping[str, Any]
) -> Iterator[Problem]:
    if (worker.strategy_name or "").startswith("megatron"):
        yield from _megatron_shape_problems(role, worker, model)
    else:
        yield from _head_problems(role, worker, model)
    positions, longest = model.get("max_position_embeddings"), max(config.lengths[2], config.val_lengths[2])
    if type(positions) is int and positions < longest and not model.get("rope_scaling"):
        yield Problem(
            f"sequence_length: {longest} tokens are more than the {positions} positions of "
            f"{worker.model_args.model_name_or_path} "
            "(max_position_embeddings). Lower prompt_length or response_length.",
            ("prompt_length", "response_length", "sequence_length", "val_sequence_length"),
        )


def _device_problems(config: AlgorithmConfig, role: str, worker: WorkerConfig) -> Iterator[Problem]:
    """What Megatron does on GPUs only, where the run is this machine's and it has none."""
    at = f"{role}.strategy_args.strategy_config"
    is_megatron = (worker.strategy_name or "").startswith("megatron")
    if not is_megatron or config.num_nodes > 1 or any(Path("/dev").glob("nvidia[0-9]*")):
        return
    if not list(megatron_problems(at, worker.strategy_config)):
        yield from cpu_problems(at, split_settings(worker.strategy_config)[0])


def _megatron_shape_problems(role: str, worker: WorkerConfig, model: Mapping[str, Any]) -> Iterator[Problem]:
    at, why_not = f"{role}.strategy_args.strategy_config", family_problem(model)
    if why_not is not None:
        key = f"{role}.strategy_args.strategy_name"
        yield Problem(f"{key}: {why_not}", (key,))
        return
    facts = ModelFacts.of(model)
    if facts is not None and not list(megatron_problems(at, worker.strategy_config)):
        yield from sizes_problems(at, split_settings(worker.strategy_config)[0], facts)


def _head_problems(role: str, worker: WorkerConfig, model: Mapping[str, Any]) -> Iterator[Problem]:
    key, tensor = f"{role}.num_gpus_per_worker", _tensor_size(worker)
    heads, kv_heads = model.get("num_attention_heads"), model.get("num_key_value_heads")
    if type(heads) is int and heads % tensor:
        fitting = ", ".join(str(n) for n in range(1, heads + 1) if heads % n == 0)
        yield Problem(
            f"{key}: {tensor} does not divide the model's {heads} attention heads. Sizes that do: {fitting}.", (key,)
        )
    elif type(kv_heads) is int and kv_heads % tensor and tensor % kv_heads:
        fitting = ", ".join(str(n) for n in range(1, kv_heads + 1) if kv_heads % n == 0)
        yield Problem(
            f"{key}: {tensor} does not fit the model's {kv_heads} key-value heads. Sizes that divide them: {fitting}.",
            (key,),
        )


def _tensor_size(worker: WorkerConfig) -> int:
    config = worker.strategy_config
    given = config.get("tensor_parallel_size", config.get("tp_size"))
    return given if type(given) is int and given > 0 else worker.num_gpus_per_worker


def _python_problems() -> Iterator[Problem]:
    """Ray splits the command line of its workers at spaces, tries for ten minutes, and does not say why it fails."""
    if any(character.isspace() for character in sys.executable):
        yield Problem(
            f"Python is {sys.executable}: Ray cannot start workers from a path with a space. Make the environment in "
            "another folder.",
            (),
        )


def _directory_problems(config: AlgorithmConfig) -> Iterator[Problem]:
    places = {
        "output_dir": config.output_dir,
        "logging_dir": config.logging_dir,
        "rollout_dump_dir": config.rollout_dump_dir,
        "checkpoint_config.output_dir": config.checkpoint_config.output_dir,
    }
    told: set[Path] = set()
    for key, place in places.items():
        if place is None:
            continue
        # The first that is there, or that nobody may look at: what is below it is not there, or hidden as well.
        whole = Path(place).absolute()
        look = next(look for path in (whole, *whole.parents) if (look := look_at(path)).kind != "absent")
        existing = look.path
        if existing in told:
            continue
        told.add(existing)
        if not look.exists:
            yield Problem(f"{key}: {look.why}. Choose another {key}.", (key,))
        elif not look.is_directory:
            yield Problem(f"{key}: {place} cannot be a directory: {existing} is a file. Choose another {key}.", (key,))
        elif not os.access(existing, os.W_OK | os.X_OK):
            yield Problem(
                f"{key}: {place} cannot be written: no permission in {existing}. Choose another {key}.", (key,)
            )


def _resume_problems(config: AlgorithmConfig) -> Iterator[Problem]:
    place = config.resume_from_checkpoint
    if isinstance(place, str) and not (look := look_at(place)).is_directory:
        unclear = look.kind in ("hidden", "impossible")
        what = look.why if unclear else f"there is no checkpoint directory {place}"
        yield Problem(
            f"resume_from_checkpoint: {what}. Correct the path, or write true for the newest one.",
            ("resume_from_checkpoint",),
        )
