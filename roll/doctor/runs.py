"""A YAML against this machine: what keeps it from starting, disks, models, the first rows."""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from roll.configs.load.loader import compose_tree, resolve_tree, yaml_at
from roll.configs.memory.parts import gigabytes
from roll.configs.sections.run import RunConfig
from roll.doctor.machine import Finding, Section
from roll.errors import ConfigError
from roll.pipeline.rlvr.rlvr_config import RLVRConfig
from roll.run.kind import kind_of
from roll.run.saving.model_files import read_model_config
from roll.run.spec import PipelineSpec
from roll.run.stages.entries import STAGES
from roll.run.stages.planned import plan_stages
from roll.run.start.load import Loaded, check
from roll.run.start.machine import machine_of
from roll.run.start.memory_report import checkpoint_bytes, memory_report
from roll.run.start.preflight import machine_report
from roll.run.start.start_checks import refusals
from roll.utils.files import is_hub_id, path_info
from roll.utils.network import cluster_address

# The files of the models that a run names: the tokenizer is there, and weights are whole.

_INDEX = "model.safetensors.index.json"


def model_findings(config: RunConfig, ignored: Collection[str] = ()) -> Iterator[Finding]:
    """Each model once. That a directory is there, with config.json, is checked before a start."""
    reported: set[str] = set()
    for role, worker in config.model_roles.items():
        name = worker.model_args.model_name_or_path
        if name is None or name in reported or ignored:
            continue
        reported.add(name)
        key = f"{role}.model_args.model_name_or_path"
        if not is_hub_id(name):
            if path_info(name).is_directory:
                yield from weight_findings(Path(name), key)
        elif read_model_config(worker.model_args)[0] is None:
            what = f"{name} is not in the hub's cache of this machine: a run downloads it first"
            yield Finding("hint", what, key, f"`hf download {name}` before the run")
        else:
            yield Finding("ok", f"{name} is in the hub's cache")


def weight_findings(directory: Path, key: str) -> Iterator[Finding]:
    index = directory / _INDEX
    named = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()) if index.is_file() else set()
    files = sorted({*directory.glob("*.safetensors"), *(directory / name for name in named)})
    if not files:
        others = any(directory.glob("*.bin"))
        level = "hint" if others else "problem"
        what = f"{directory} holds {'weights as *.bin, and no *.safetensors' if others else 'no weights'}"
        yield Finding(level, what, key, "Name a directory with *.safetensors (`hf download` gets them)")
        return
    wrong = [text for file in files if (text := damage(file))]
    fix = "Get the file again: a download or a copy was interrupted"
    yield from (Finding("problem", text, key, fix) for text in wrong)
    if not wrong:
        size = sum(file.stat().st_size for file in files)
        yield Finding("ok", f"{directory}: {gigabytes(size)} GB of weights in {len(files)} files, all complete")


def damage(file: Path) -> str:
    """Return what is damaged in a file of safetensors, by its header and its size; empty for an intact one."""
    if not file.is_file():
        return f"{file} is missing, which {_INDEX} names"
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="np"):
            return ""
    except (SafetensorError, OSError) as error:
        return f"{file} is damaged: {error}"


_SHM = Path("/dev/shm")
_WHOLE = 2  # a bucket is written while the one before is read


@dataclass(frozen=True)
class Run:
    """`ignored`: keys of models that an earlier stage is to leave."""

    title: str
    spec: PipelineSpec
    loaded: Loaded
    ignored: Collection[str] = ()


def run_sections(path: str, overrides: Sequence[str]) -> list[Section]:
    """Raises ConfigError if there is no such YAML; what is wrong with it is a finding."""
    directory, name = yaml_at(path)
    try:
        runs = _runs(directory, name, overrides)
    except ConfigError as error:
        problems = error.problems
        return [Section(path, {"configuration": lambda: [Finding("problem", text) for text in problems]})]
    return [
        Section(
            run.title,
            {
                "configuration": partial(_configuration, run),
                "disk": partial(_disk, run),
                "models": partial(model_findings, run.loaded.config, run.ignored),
                "start": partial(_start, run),
            },
            Path(run.loaded.config.output_dir),
        )
        for run in runs
    ]


def _runs(directory: Path, name: str, overrides: Sequence[str]) -> list[Run]:
    raw = compose_tree(directory, name, overrides)
    if STAGES in raw.tree:
        return [
            Run(f"{name}, stage {stage.name}", stage.spec, stage.loaded, stage.stand_ins)
            for stage in plan_stages(raw, overrides, None)
        ]
    spec = kind_of(raw.tree)
    return [Run(name, spec, check(spec, resolve_tree(raw, spec.config_class())))]


def _configuration(run: Run) -> Iterator[Finding]:
    config = run.loaded.config
    nodes = f"{config.num_nodes} node{'s' if config.num_nodes > 1 else ''} of {config.num_gpus_per_node} devices"
    yield Finding("ok", f"a run of the kind {run.spec.name} on {nodes}; `roll plan` shows its steps")
    if cluster_address() is None:
        machine = machine_of(config)
        if 0 < machine.num_gpus < config.num_gpus_per_node:
            what = f"a node of {config.num_gpus_per_node} devices, and this machine has {machine.num_gpus}"
            yield Finding("problem", what, "num_gpus_per_node", f"Set it to {machine.num_gpus} or less")
        if config.num_nodes > 1:
            fix = "Start Ray on them (docs/many_nodes.md) and set it"
            yield Finding("problem", f"{config.num_nodes} nodes, but no Ray cluster is configured", "RAY_ADDRESS", fix)
    yield from (Finding("hint", warning) for warning in run.loaded.warnings)


def _disk(run: Run) -> Iterator[Finding]:
    config, plan = run.loaded.config, run.loaded.plan
    if _SHM.is_dir() and (needed := _WHOLE * plan.bucket_bytes):
        free = shutil.disk_usage(_SHM).free
        if free < needed:
            what = f"two buckets of weights are {gigabytes(needed)} GB, and /dev/shm has {gigabytes(free)} GB free"
            yield Finding("problem", what, "model_update_buffer_size_mb", "Lower it, or make /dev/shm larger")
    if config.save_steps <= 0:
        yield Finding("ok", "no checkpoints are saved (save_steps)")
        return
    one, place = checkpoint_bytes(config), config.checkpoint_dir.absolute()
    existing = next(path for path in (place, *place.parents) if path.is_dir())
    yield from disk_findings(one, _num_kept(run), shutil.disk_usage(existing).free, place)


def _num_kept(run: Run) -> int:
    config = run.loaded.config
    made = math.ceil(config.max_steps / config.save_steps)
    return min(made, config.max_ckpt_to_keep) if config.max_ckpt_to_keep else made


def disk_findings(one: float, num_kept: int, free: float, place: Path) -> Iterator[Finding]:
    """`one`: bytes of a checkpoint. One more than is kept is there while it is written."""
    if not one:
        yield Finding("ok", f"{place}: {gigabytes(free)} GB free; the size of a checkpoint is not known")
        return
    needed = one * (num_kept + 1)
    text = f"{place}: {gigabytes(free)} GB free; a checkpoint takes about {gigabytes(one)} GB, {num_kept} are kept"
    if free < one:
        yield Finding("problem", f"{text}: no checkpoint fits", "checkpoint_config.output_dir", "Choose a larger disk")
    elif free < needed:
        fix = f"Keep {max(int(free / one) - 1, 1)} or fewer, save less often (save_steps), or choose another disk"
        yield Finding("problem", f"{text}: {gigabytes(needed)} GB are needed", "max_ckpt_to_keep", fix)
    else:
        yield Finding("ok", text)


def _start(run: Run) -> Iterator[Finding]:
    """Run the checks of a real start, then check the first rows. Loads torch, no engine and no Ray."""
    config = run.loaded.config
    yield from (Finding("hint", f"not checked: {text}") for text in machine_report(config).unchecked)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    memory = memory_report(config, run.loaded.plan)
    problems = refusals(run.spec, run.loaded, memory, frozenset(run.ignored))
    yield from (Finding("problem", text) for text in problems)
    if problems:
        return
    yield Finding("ok", "packages, models, data and user-defined code: the run can start")
    if isinstance(config, RLVRConfig) and not run.ignored:
        from roll.doctor.rows import row_findings

        yield from row_findings(config)
