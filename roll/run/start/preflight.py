"""Checks that only this machine can make: models, packages, directories. A problem refuses a start; a plan treats it by
`Problem.of`."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from roll.configs.checks.platforms import platform_machine_problems
from roll.configs.checks.training import (
    fused_head_machine_problems,
    optimizer_machine_problems,
)
from roll.configs.plan.layout import parallel_sizes
from roll.configs.problems import Problem
from roll.configs.sections.cluster import WorkerConfig
from roll.configs.sections.run import RunConfig
from roll.configs.strategies.choice import Choice
from roll.configs.strategies.features import Feature
from roll.configs.strategies.table import NOTHING_KNOWN, spec_of
from roll.configs.tables.features import active
from roll.datasets.sources import names_data_set
from roll.distributed.strategy.table import engine_problems, strategy_problems
from roll.platforms.table import PLATFORMS
from roll.run.saving.model_files import read_model_config
from roll.run.start.device_defaults import unplaced
from roll.run.start.machine import machine_of
from roll.utils.files import is_hub_id, path_info
from roll.utils.imports import is_installed

if TYPE_CHECKING:
    from roll.models.hub import Kind

TOKENIZER_FILES = ("tokenizer_config.json", "tokenizer.json", "tokenizer.model", "vocab.json")


@dataclass(frozen=True)
class MachineReport:
    """`problems` stop a start. `unchecked` could not be looked at from here, each with the reason."""

    problems: tuple[Problem, ...]
    unchecked: tuple[str, ...]


def choices(config: RunConfig) -> list[Choice]:
    """The roles of this run, as the specs of their strategies are asked about them."""
    return [
        Choice(
            config.roles[role],
            worker,
            config.grad_norm_of(role, worker),
            config.num_nodes,
            config.longest_row,
            config.platform,
        )
        for role, worker in config.model_roles.items()
    ]


def role_strategy_problems(config: RunConfig) -> list[Problem]:
    """Return problems of every role's strategy and of the run's features, on any machine."""
    features = active(config)
    problems = [problem for feature in features for problem in feature.problems(config)]
    for choice in choices(config):
        problems += strategy_problems(choice)
        if spec_of(choice.worker.strategy_name) is not NOTHING_KNOWN:
            problems += [problem for feature in features for problem in feature.role_problems(choice)]
    return problems


def role_strategy_warnings(config: RunConfig) -> list[str]:
    """Return warnings about settings that a role's strategy reads differently than they are written."""
    warnings = [text for feature in active(config) for text in feature.warnings(config)]
    for choice in choices(config):
        spec = spec_of(choice.worker.strategy_name)
        warnings += spec.hook_findings(spec.warnings, str, choice)
        runs_transformers = Feature.TRANSFORMERS_MODEL in spec.supports
        if not runs_transformers and choice.role.use != "generate":
            continue
        if (model := read_model_config(choice.worker.model_args)[0]) is not None:
            from roll.run.start.model_checks import model_warnings

            warnings += model_warnings(choice, model)
    return warnings


def machine_report(config: RunConfig) -> MachineReport:
    features = active(config)
    problems = [*platform_machine_problems(config.platform)]
    problems += [problem for feature in features for problem in feature.machine_problems(config)]
    unchecked: list[str] = []
    for choice in choices(config):
        worker, spec = choice.worker, spec_of(choice.worker.strategy_name)
        problems += engine_problems(choice)
        problems += optimizer_machine_problems(choice)
        problems += fused_head_machine_problems(choice)
        problems += [problem for feature in features for problem in feature.role_machine_problems(choice)]
        problems += spec.hook_findings(spec.machine_problems, Problem, choice)
        model, why_not = read_model_config(worker.model_args)
        sizes = parallel_sizes(worker)
        if model is not None:
            if (refusal := _multimodal_refusal(config, choice, model)) is not None:
                problems.append(refusal)
                continue
            from roll.run.start.model_checks import model_problems  # where a model is known

            problems += model_problems(config, choice, model, features)
            continue
        if spec.unchecked_without_model:
            unchecked.append(f"{choice.role.name}: {spec.unchecked_without_model} ({why_not}).")
        if max(sizes.tensor, sizes.pipeline, sizes.expert, sizes.sequence) > 1:
            unchecked.append(f"{choice.role.name}: heads and layers against the parallel sizes ({why_not}).")
    problems += [
        *_tracker_problems(config),
        *_model_problems(config),
        *_tokenizer_problems(config),
        *_cpu_problems(config),
        *_directory_problems(config),
        *_source_problems(config),
        *_resume_problems(config),
    ]
    return MachineReport(tuple(problems), (*unchecked, *_gpus_elsewhere(config)))


def _tracker_problems(config: RunConfig) -> Iterator[Problem]:
    trackers = config.track_with
    if not trackers and not config.tracker_kwargs:
        return
    from roll.run.tracking.build import missing_trackers, tracker_problems

    yield from (Problem(text, ("track_with",)) for text in tracker_problems(trackers, config.tracker_kwargs))
    yield from (Problem(text, ("track_with",), "machine") for text in missing_trackers(trackers))


def _gpus_elsewhere(config: RunConfig) -> Iterator[str]:
    """Names GPUs that the run is planned for and this machine lacks; devices of roles on the CPU are slots."""
    here, wanted = machine_of(config).num_gpus, config.num_gpus_per_node
    placed = [worker for worker in config.model_roles.values() if worker.device_mapping]
    has_engine = any(spec_of(worker.strategy_name).share is not None for worker in placed)
    if "num_gpus_per_node" in config.model_fields_set and wanted > here and placed and (here or has_engine):
        yield f"GPUs: the run takes {wanted} of a node (num_gpus_per_node), and this machine has {here or 'none'}."


def _multimodal_refusal(config: RunConfig, choice: Choice, model: Mapping[str, Any]) -> Problem | None:
    if not _is_loaded_here(choice) or choice.role.head is None:
        return None
    from roll.datasets.sight import sight

    key = _model_key(config, choice.role.name, choice.worker)
    text = sight().refusal(model, choice.role.head, key, choice.worker.model_args.model_name_or_path)
    return None if text is None else Problem(f"{text}.", (key,))


def multimodal_notes(config: RunConfig) -> Iterator[str]:
    """Models that take more than text, and are trained on it alone."""
    reported: set[str | None] = set()
    for choice in choices(config):
        name = choice.worker.model_args.model_name_or_path
        model, _ = read_model_config(choice.worker.model_args)
        if model is None or name in reported or not _is_loaded_here(choice) or choice.role.head is None:
            continue
        from roll.datasets.sight import sight

        key = _model_key(config, choice.role.name, choice.worker)
        text = sight().note(model, choice.role.head, key, name)
        if text is not None:
            reported.add(name)
            yield text


def _is_loaded_here(choice: Choice) -> bool:
    """False for an engine of its own package, which has more kinds of models than a trainer."""
    return choice.role.use != "generate" or spec_of(choice.worker.strategy_name).share is None


def _model_problems(config: RunConfig) -> Iterator[Problem]:
    away = [worker for worker in config.model_roles.values() if worker.model_args.is_on_modelscope]
    if away and not is_installed("modelscope"):
        key = "model_download_type"
        yield Problem(
            f"{key}: MODELSCOPE needs the package modelscope, which is not installed. Install it: "
            "pip install modelscope",
            (key,),
            "machine",
        )
    seen: set[str] = set()
    for role, worker in config.model_roles.items():
        name = worker.model_args.model_name_or_path
        if name is None or name in seen or is_hub_id(name):
            continue
        seen.add(name)
        key = _model_key(config, role, worker)
        status, inside = path_info(name), path_info(Path(name, "config.json"))
        if unclear := next((each.why for each in (status, inside) if each.kind in ("hidden", "impossible")), None):
            yield Problem(
                f"{key}: {unclear}. Choose another directory, or give a hub id (owner/name).", (key,), "place"
            )
        elif not status.is_directory:
            yield Problem(
                f"{key}: there is no model directory {name}. Correct the path, or give a hub id (owner/name).",
                (key,),
                "place",
            )
        elif not inside.is_file:
            yield Problem(f"{key}: {name} has no config.json, so it is not a model folder.", (key,), "place")
        elif (model := read_model_config(worker.model_args))[0] is None and not worker.model_args.is_on_modelscope:
            yield Problem(f"{key}: {model[1]}. Correct the file, or choose another model.", (key,))


def hub_names(config: RunConfig) -> dict[str, tuple[str, Kind]]:
    """Names of the Hugging Face hub that the run takes from there or from its cache, each with the first key."""
    found: dict[str, tuple[str, Kind]] = {}
    for role, worker in config.model_roles.items():
        args = worker.model_args
        names = {_model_key(config, role, worker): None if args.is_on_modelscope else args.model_name_or_path}
        names[f"{role}.model_args.tokenizer_path"] = None if args.is_on_modelscope else args.tokenizer_path
        names[f"{role}.model_args.adapter_name_or_path"] = args.adapter_name_or_path if args.has_lora else None
        for key, name in names.items():
            if name is not None and is_hub_id(name):
                found.setdefault(name, (key, "model"))
    for at, data in config.data_args.items():
        for name in filter(names_data_set, data.file_name):
            found.setdefault(name, (f"{at}.file_name", "dataset"))
    return found


def hub_problems(config: RunConfig, loads: bool = False) -> Iterator[Problem]:
    """Yield what the Hugging Face hub does not give. `loads`: the run starts next."""
    from roll.models import hub

    names = hub_names(config)
    for name, why in hub.hub_problems({name: kind for name, (_, kind) in names.items()}, loads).items():
        key = names[name][0]
        yield Problem(f"{key}: {why}", (key,), "place")


def _cpu_problems(config: RunConfig) -> Iterator[Problem]:
    """Roles for which no devices could be chosen, though there are GPUs, or the YAML speaks of some."""
    if config.gpu_memory_gb is not None:
        why = f"gpu_memory_gb: {config.gpu_memory_gb:g} is for GPUs, and this machine has none"
    elif config.platform != "auto" and PLATFORMS[config.platform].is_accelerator:
        devices = PLATFORMS[config.platform].devices
        why = f"platform: {config.platform} is for {devices}, and this machine has {machine_of(config).num_gpus}"
    elif "num_gpus_per_node" in config.model_fields_set or machine_of(config).num_gpus:
        why = "its work does not split over any number of the run's devices"
    else:
        return
    for name in unplaced(config):
        yield Problem(
            f"{name}.device_mapping is missing, and none can be chosen: {why}. Set num_gpus_per_node to the GPUs of a "
            f"node, name the devices of {name}, such as list(range(0, {config.num_gpus_per_node})), or write "
            f"{name}.world_size: 1 for one worker on the CPU.",
            (f"{name}.device_mapping", f"{name}.world_size"),
        )


def _tokenizer_problems(config: RunConfig) -> Iterator[Problem]:
    for role, worker in config.model_roles.items():
        name = worker.model_args.tokenizer_path
        if name is None or is_hub_id(name):
            continue
        key = f"{role}.model_args.tokenizer_path"
        if not (status := path_info(name)).is_directory:
            why = status.why if status.kind in ("hidden", "impossible") else f"there is no directory {name}"
            yield Problem(f"{key}: {why}. Correct the path, or give a hub id (owner/name).", (key,), "place")
        elif not any(path_info(Path(name, file)).is_file for file in TOKENIZER_FILES):
            yield Problem(f"{key}: {name} holds no tokenizer: none of {', '.join(TOKENIZER_FILES)}.", (key,), "place")


def _model_key(config: RunConfig, role: str, worker: WorkerConfig) -> str:
    name = worker.model_args.model_name_or_path
    named = (key for key in config.roles[role].model_keys if getattr(config, key) == name)
    return next(named, f"{role}.model_args.model_name_or_path")


def _directory_problems(config: RunConfig) -> Iterator[Problem]:
    reported: set[Path] = set()
    for key, place in config.directories.items():
        if place is None:
            continue
        # The first that is there, or that nobody may look at: what is below it is not there, or hidden as well.
        whole = Path(place).absolute()
        status = next(status for path in (whole, *whole.parents) if (status := path_info(path)).kind != "absent")
        existing = status.path
        if existing in reported:
            continue
        reported.add(existing)
        if not status.exists:
            yield Problem(f"{key}: {status.why}. Choose another {key}.", (key,), "place")
        elif not status.is_directory:
            yield Problem(
                f"{key}: {place} cannot be a directory: {existing} is a file. Choose another {key}.", (key,), "place"
            )
        elif not os.access(existing, os.W_OK | os.X_OK):
            yield Problem(
                f"{key}: {place} cannot be written: no permission in {existing}. Choose another {key}.", (key,), "place"
            )


def _source_problems(config: RunConfig) -> Iterator[Problem]:
    for key, place in config.sources.items():
        yield from _missing_folder(key, place, "directory", "Correct it.")


def _resume_problems(config: RunConfig) -> Iterator[Problem]:
    place, key = config.resume_from_checkpoint, "resume_from_checkpoint"
    if isinstance(place, str):
        hint = "Correct the path, or write true for the newest one."
        yield from _missing_folder(key, place, "checkpoint directory", hint)


def _missing_folder(key: str, place: str | Path, what: str, hint: str) -> Iterator[Problem]:
    status = path_info(place)
    if not status.is_directory:
        unclear = status.kind in ("hidden", "impossible")
        yield Problem(f"{key}: {status.why if unclear else f'there is no {what} {place}'}. {hint}", (key,), "place")
