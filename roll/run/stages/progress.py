"""How far a run in stages is: known from the checkpoints that its stages left, and from nothing else."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from roll.errors import ConfigError, StorageError
from roll.run.saving.checkpoint import CheckpointStore, read_state
from roll.run.saving.manifest import check_digests, manifest_digest, read_manifest
from roll.run.saving.resume import differences
from roll.run.stages.planned import Stage
from roll.run.start.load import Loaded
from roll.utils.files import read_object
from roll.utils.text import counted

_RECORD = "started_from.json"


@dataclass(frozen=True)
class Progress:
    """The newest checkpoint of a stage. `settings`: those that have changed since and would have counted."""

    path: Path
    steps_done: int
    is_finished: bool
    settings: tuple[str, ...] = ()


def progress_of(stage: Stage) -> Progress | None:
    """Return the progress of a stage; None if it has not begun. Raises ConfigError where it cannot be read."""
    config = stage.loaded.config
    path = CheckpointStore(config.checkpoint_dir).latest()
    if path is None:
        return None
    state = read_state(path)
    wanted: object = config.max_steps
    if config.counts_epochs:  # the rows were counted by the run that saved it
        same = state.config.get("num_train_epochs") == config.num_train_epochs
        wanted = state.config.get("max_steps") if same else None
    is_finished = isinstance(wanted, int) and state.steps_done >= wanted
    changed = differences(state.config, config) if is_finished else []
    ignored = {"max_steps", *stage.stand_ins}
    counted = tuple(str(change) for change in changed if change.rule.effect != "free" and change.key not in ignored)
    return Progress(path, state.steps_done, is_finished, counted)


def progress_lines(state: Progress | None) -> Iterator[str]:
    if state is None:
        return
    steps = counted(state.steps_done, "step")
    yield f"  finished, {steps}: {state.path}" if state.is_finished else f"  continues after {steps}: {state.path}"
    for text in state.settings:
        yield f"  was finished under another setting, and is not run again: {text}"


def progress_problems(stages: Sequence[Stage], states: Sequence[Progress | None]) -> Iterator[str]:
    place = Path(stages[0].loaded.config.output_dir).parent
    there = [stage for stage, known in zip(stages, states, strict=True) if known is not None]
    if there and stages[0].afresh:
        yield (
            f"resume_from_checkpoint: false, and {place} holds checkpoints of {_names(there)}. Remove the key to "
            "continue from them, or choose another output_dir."
        )
        return
    known = dict(zip((stage.name for stage in stages), states, strict=True))
    for i, stage in enumerate(stages):
        state = known[stage.name]
        begun = [later for later in stages[i + 1 :] if known[later.name] is not None]
        if begun and (state is None or not state.is_finished):
            done = f"{state.steps_done} steps are done" if state else "it has no checkpoint"
            yield (
                f"{stage.name} is not finished ({done}), but {_names(begun)} began after it. Bring its settings or its "
                f"checkpoints back, or move the folders of {_names(begun)} out of {place}."
            )
            return
        if state is not None and _record(stage) != _began_with(stage, known):
            yield (
                f"{stage.name} began with other models than {_names(stage.givers) or 'the YAML'} would give it now. "
                f"Bring those back, or move {stage.loaded.config.output_dir} away to begin it anew."
            )


def begin(stage: Stage, states: Mapping[str, Progress]) -> None:
    """Notes what a stage starts from, before its first checkpoint."""
    folder = Path(stage.loaded.config.output_dir)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / _RECORD).write_text(json.dumps(_began_with(stage, states), indent=1))
    except OSError as error:
        raise ConfigError(f"output_dir: {folder} cannot be written: {error.strerror}.") from error


def check_sound(stage: Stage, state: Progress) -> None:
    """Reads a model whole before another stage starts from it. Raises ConfigError if it is damaged."""
    if not stage.loaded.config.verify_checkpoint:
        return
    manifest = read_manifest(state.path)
    try:
        check_digests(state.path, manifest)
    except ConfigError as error:
        hint = f"Restore the files, or move {state.path} away: {stage.name} then goes on from the checkpoint before."
        raise ConfigError(*error.problems, hint) from error


def _began_with(stage: Stage, states: Mapping[str, Progress | None]) -> dict[str, str]:
    """Digests of the models that a stage starts from, by the names of their stages."""
    return {name: manifest_digest(state.path) for name in sorted(stage.givers) if (state := states[name]) is not None}


def _record(stage: Stage) -> dict[str, object]:
    try:
        return read_object(Path(stage.loaded.config.output_dir) / _RECORD)
    except (OSError, ValueError):
        return {}


def _names(stages: Sequence[Stage] | frozenset[str]) -> str:
    return " and ".join(sorted(stages) if isinstance(stages, frozenset) else [stage.name for stage in stages])


# One stage after the other, each a run of its own.


def run_stages(stages: Sequence[Stage], before: Callable[[Stage, Loaded], None]) -> int:
    """Runs what is not finished, and returns the exit code of the first run that does not end well, or 0. `before` each
    run raises ConfigError for what stands against it on this machine: of models that were not there, it is known only
    now."""
    states: dict[str, Progress] = {}
    for stage in stages:
        state = progress_of(stage)
        if state is None or not state.is_finished:
            for name in stage.givers:
                check_sound(next(each for each in stages if each.name == name), states[name])
            loaded = stage.over({name: str(states[name].path) for name in stage.givers})
            before(stage, loaded)
            if state is None:
                begin(stage, states)
            if code := int(stage.spec.make_run(loaded.config, loaded.plan).run()):
                return code
            state = progress_of(stage)
            if state is None or not state.is_finished:
                raise StorageError(
                    f"{stage.name} ended, and {stage.loaded.config.checkpoint_dir} does not have its last step"
                )
        states[stage.name] = state
    return 0
