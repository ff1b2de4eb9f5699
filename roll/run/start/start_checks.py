"""Reasons to refuse a start: on this machine, in the user's code, in the data; and how a plan reports them."""

import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from roll.configs.checks.variables import inherited_problems
from roll.configs.problems import Problem
from roll.configs.sections.run import RunConfig
from roll.configs.tables.features import active
from roll.distributed.strategy.table import class_problems
from roll.errors import ConfigError
from roll.run.spec import PipelineSpec
from roll.run.start.load import Loaded
from roll.run.start.preflight import choices, hub_names, hub_problems, machine_report
from roll.utils.files import path_info
from roll.utils.imports import import_all
from roll.utils.network import cluster_address

# A run that begins with its first step does not replace another one's results.

_KEYS = ("output_dir", "logging_dir", "checkpoint_config", "resume_from_checkpoint", "overwrite_output_dir")


def folder_problems(config: RunConfig) -> Iterator[Problem]:
    """A finished run where this one writes, checkpoints, or a run of another name. What failed before its first
    checkpoint is in nobody's way: its metrics are put aside (`metrics.1.jsonl`)."""
    if config.overwrite_output_dir or not config.begins_afresh or (held := _held(config)) is None:
        return
    place = config.output_dir.rstrip("/")
    yield Problem(
        f"output_dir: {held}. To go on from there set resume_from_checkpoint: true; to replace it set "
        f"overwrite_output_dir: true; to keep both choose another name, such as output_dir: {place}-2.",
        _KEYS,
        "place",
    )


def _held(config: RunConfig) -> str | None:
    try:
        saved = sorted(path.name for path in config.checkpoint_dir.glob("step_*") if path.is_dir())
    except OSError:
        saved = []
    story = None
    if os.path.isdir(config.logging_dir):
        from roll.run.records.run_record import RUN_FILE, read_story

        with suppress(OSError, ValueError):
            story = read_story(Path(config.logging_dir) / RUN_FILE)
    name = story.config.get("exp_name") if story is not None else None
    last = story.starts[-1] if story is not None and story.starts else None
    if last is not None and name != config.exp_name:
        return f"{config.logging_dir} holds the run {name}, and this one is {config.exp_name}"
    if last is not None and last.exit_code == 0:
        return f"{config.output_dir} holds a finished run, {name}, that ended at {last.ended}"
    if saved:
        return f"{config.checkpoint_dir} holds checkpoints up to {saved[-1]}, which new ones would replace"
    return None


NONE: frozenset[str] = frozenset()


@dataclass(frozen=True)
class StartOptions:
    """How a start is asked for. `is_plan`: it is planned only. `elsewhere`: the plan is for a machine that has other
    files and logins. `unset`: variables of the environment that the YAML names and this machine does not have.
    `lists_all`: the whole plan is shown."""

    is_plan: bool = False
    elsewhere: bool = False
    unset: frozenset[str] = NONE
    lists_all: bool = False


@dataclass(frozen=True)
class Foreseen:
    """`stops`: what would end a start with what is here. `lines`: what else there is to say."""

    stops: list[str]
    lines: list[str]


@dataclass(frozen=True)
class MemoryReport:
    """`problems`: what cannot fit in the memory that the configuration names; `machine_problems`: in this machine's
    GPUs, where it names none; `room_problems`: on the disk of its checkpoints. `knows_gpus`: there is something to hold
    the figures against. `facts`: of the roles whose model is known."""

    text: str
    knows_gpus: bool = False
    warnings: tuple[str, ...] = ()
    problems: tuple[Problem, ...] = ()
    machine_problems: tuple[Problem, ...] = ()
    room_problems: tuple[Problem, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)


def refusals(spec: PipelineSpec, loaded: Loaded, memory: MemoryReport, ignored: Collection[str] = NONE) -> list[str]:
    """Everything that stands against the run, all at once. Findings on `ignored` keys are left out."""
    problems = [*hub_problems(loaded.config, loads=True), *start_problems(spec, loaded.config, is_plan=False)]
    problems += [*memory.problems, *memory.machine_problems, *memory.room_problems]
    return _problem_texts(problem for problem in problems if not {*problem.keys} & {*ignored})


def foreseen(
    spec: PipelineSpec, loaded: Loaded, memory: MemoryReport, options: StartOptions, ignored: Collection[str] = NONE
) -> Foreseen:
    """Return the problems of a start that a plan can report. Reads files of this machine, imports what the YAML names
    of the user's code, and asks the Hugging Face hub for ids that are not in its cache."""
    config = loaded.config
    said = spec.hook_findings(spec.reports, (str, Problem), config)
    problems = [*start_problems(spec, config, is_plan=True), *memory.problems, *memory.room_problems]
    problems += [] if options.elsewhere else hub_problems(config)
    problems += [replace(problem, of="machine") for problem in memory.machine_problems]
    problems += [each for each in said if isinstance(each, Problem)]
    problems += _checkpoint_problems(loaded)
    stops, unchecked = sort_out(problems, config, options, ignored)
    unchecked += machine_report(config).unchecked
    if options.elsewhere and (names := hub_names(config)):
        unchecked.append(f"{', '.join(names)}: not looked for in the cache, nor on the Hugging Face hub.")
    if config.num_nodes > 1 and cluster_address() is None:
        unchecked.append(f"num_nodes: {config.num_nodes} nodes, and RAY_ADDRESS names no cluster (docs/many_nodes.md).")
    lines = [each for each in said if isinstance(each, str)]
    lines += [f"Not checked here: {text}" for text in dict.fromkeys(unchecked)]
    return Foreseen(_problem_texts(stops), [*lines, f"Not checked in a plan: {spec.unchecked}."])


def _checkpoint_problems(loaded: Loaded) -> list[Problem]:
    """Return the problems of the checkpoint that a start resumes from; digests are left to it."""
    config, place = loaded.config, loaded.config.resume_from_checkpoint
    if not place or (isinstance(place, str) and not path_info(place).is_directory):
        return []
    from roll.run.saving.checkpoint import CheckpointStore
    from roll.run.saving.resume import resume_problems  # brings what trainers save

    keys = ("resume_from_checkpoint",)
    try:
        checkpoint = CheckpointStore(config.checkpoint_dir, verify=False).resolve(place, cleans=False)
    except ConfigError as error:
        return [Problem(text, keys, "place") for text in error.problems]
    return (
        [] if checkpoint is None else [Problem(text, keys) for text in resume_problems(checkpoint, config, loaded.plan)]
    )


def beside_mistakes(spec: PipelineSpec, options: StartOptions, config: RunConfig) -> list[Problem]:
    """Return further problems of a start whose settings have mistakes, by the valid part of them."""
    stops, _ = sort_out(start_problems(spec, config, is_plan=True), config, options)
    return stops


def start_problems(spec: PipelineSpec, config: RunConfig, is_plan: bool) -> list[Problem]:
    """All that is found without a plan of the run. A plan reads rows in files of this machine alone."""
    problems = [*machine_report(config).problems, *folder_problems(config)]
    problems += spec.hook_findings(spec.machine_problems, Problem, config)
    if cluster_address() is None:  # workers of a cluster inherit what it was started with, and look themselves
        problems += inherited_problems(config, os.environ)
    if not any("external_lib" in problem.keys for problem in problems):
        try:
            import_all(config.external_lib)
        except ImportError as error:
            problems.append(Problem(f"external_lib: {error}.", ("external_lib",)))
    problems += [problem for choice in choices(config) for problem in class_problems(choice)]
    features = active(config)
    problems += _as_problems(spec.hook_findings(spec.code_problems, (Problem, str), config))
    problems += _as_problems(problem for feature in features for problem in feature.code_problems(config))
    rows = spec.local_rows if is_plan else spec.data_problems
    problems += _as_problems(spec.hook_findings(rows, (Problem, str), config))
    return problems + _as_problems(text for feature in features for text in feature.row_problems(config, not is_plan))


def sort_out(
    problems: Iterable[Problem], config: RunConfig, options: StartOptions, ignored: Collection[str] = NONE
) -> tuple[list[Problem], list[str]]:
    """Sort problems into those that stop the start, and those that only another machine can check."""
    away = _keys_of(options.unset, config)
    stops: list[Problem] = []
    unchecked = [f"{', '.join(keys[:3])}: the variable {name} is not set here." for name, keys in away.items() if keys]
    unset = {key for keys in away.values() for key in keys}
    for problem in problems:
        if {*problem.keys} & {*ignored}:
            continue
        if {*problem.keys} & unset or any(f"${name}" in problem.text for name in options.unset):
            continue
        is_away = problem.of == "machine" or (problem.of == "place" and options.elsewhere)
        if options.is_plan and is_away:
            unchecked.append(problem.text)
        else:
            stops.append(problem)
    return stops, unchecked


def _as_problems(findings: Iterable[Problem | str]) -> list[Problem]:
    return [each if isinstance(each, Problem) else Problem(each) for each in findings]


def _problem_texts(problems: Iterable[Problem]) -> list[str]:
    """Return every text once; a full stop makes no difference."""
    return list({problem.text.rstrip("."): problem.text for problem in problems}.values())


def _keys_of(names: Collection[str], config: RunConfig) -> dict[str, list[str]]:
    """Maps the name of a variable that is not set to the keys whose values hold it."""
    values = dict(_texts(config.model_dump(), "")) if names else {}
    return {name: [key for key, text in values.items() if f"${name}" in text] for name in sorted(names)}


def _texts(node: object, path: str) -> Iterator[tuple[str, str]]:
    """Keys with their texts; a list of texts is one."""
    if isinstance(node, str):
        yield path, node
    elif isinstance(node, Mapping):
        for key, value in node.items():
            yield from _texts(value, f"{path}.{key}" if path else str(key))
    elif isinstance(node, list | tuple):
        if all(isinstance(item, str) for item in node):
            yield path, "\n".join(map(str, node))
        else:
            for index, item in enumerate(node):
                yield from _texts(item, f"{path}[{index}]")
