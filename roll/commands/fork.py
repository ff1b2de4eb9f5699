"""`roll fork`: a new run that goes on from a checkpoint of another."""

import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from roll.commands.options import fork_parser
from roll.commands.run import start_yaml
from roll.errors import ConfigError
from roll.report.run_files import RunFiles, find_run
from roll.run.records.run_record import FORK_FILE, RUN_FILE, RunStory, read_story
from roll.run.saving.checkpoint import CheckpointStore
from roll.utils.imports import add_folder, own_folders
from roll.utils.logging import say
from roll.utils.secrets import MASK
from roll.utils.text import visible

_OF_THE_FIRST = (
    *("output_dir", "logging_dir", "rollout_dump_dir", "checkpoint_config", "profiler_output_dir"),
    *("resume_from_checkpoint", "overwrite_output_dir"),
)
_PLACES = ("log_dir", "logdir")  # of trackers


def run(argv: Sequence[str]) -> int:
    """The exit code of the new run. It has the weights, the optimizer, the place in the data, the random streams and
    the unfinished groups of the other one: without changes it takes the same steps. Raises ConfigError."""
    options, overrides = fork_parser().parse_known_args(argv)
    name, at, step = str(options.run).rpartition("@")
    name, step = (name, step) if at and step.isdecimal() else (options.run, "")
    first = find_run(Path(name).absolute())
    out = Path(options.out) if options.out else _free(first.output)
    file = write_fork(first, step, out.absolute(), overrides)
    say(f"The fork's YAML starts again by this line and the same overrides: {visible(shell_line(file))}")
    return start_yaml(str(file), overrides, is_plan=options.dry_run)


def write_fork(
    first: RunFiles, step: str, out: Path, overrides: Sequence[str] = (), resumes: bool = True, kind: str = "fork"
) -> Path:
    """Writes the YAML of a fork below `out` and returns its path. `step`: of the checkpoint; empty: the newest.
    `overrides`: what is given beside it, a run's secrets among them. One that does not resume begins where the first
    did. `kind`: fork or why, for the new run's record."""
    try:
        story = read_story(first.logs / RUN_FILE)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{first.logs / RUN_FILE} cannot be read: {error}. It says what the run was given."
        ) from error
    if not story.settings:
        raise ConfigError(f"{first.logs / RUN_FILE} does not say what the run was given: an earlier roll wrote it.")
    filled = [word.lstrip("+").partition("=")[0] for word in overrides]
    if hidden := [key for key in hidden_keys(story.settings) if key not in filled]:
        raise ConfigError(f"{hidden[0]}: the run's secrets are not recorded. Give it again: {hidden[0]}=...")
    resumed = str(_checkpoint(first, step)) if resumes else story.settings.get("resume_from_checkpoint", False)
    for folder in story.folders:
        add_folder(Path(folder))
    tree = {**settings_again(story), "exp_name": out.name, "output_dir": str(out), "resume_from_checkpoint": resumed}
    out.mkdir(parents=True, exist_ok=True)
    if os.path.isdir(story.directory):
        os.chdir(story.directory)  # relative paths of the first run start there
    file = out / FORK_FILE
    at = f"@{Path(resumed).name.removeprefix('step_').lstrip('0')}" if resumes else ""
    head = f"# {kind} of {first.output.name}{at}\n"
    file.write_text(head + yaml.safe_dump(tree, sort_keys=False), encoding="utf-8")
    return file


def shell_line(file: Path, words: Sequence[str] = ()) -> str:
    """The command that starts the YAML which `write_fork` just wrote: where the first run was, with its folders."""
    place, folders = shlex.quote(os.getcwd()), shlex.quote(os.pathsep.join(own_folders()))
    return f"cd {place} && PYTHONPATH={folders} {shlex.join(['roll', 'run', str(file), *words])}"


def settings_again(story: RunStory) -> dict[str, Any]:
    """Return the settings of a run without the places that it writes to."""
    settings = {key: value for key, value in story.settings.items() if key not in _OF_THE_FIRST}
    trackers = _elsewhere(settings.pop("tracker_kwargs", {}))
    return settings | ({"tracker_kwargs": trackers} if trackers else {})


def checkpoints_of(first: RunFiles) -> list[Path]:
    """Whole paths of a run's checkpoints, the last step first: where the run says, and below its folder."""
    named = (first.config.get("checkpoint_config") or {}).get("output_dir")
    places = [first.output / "checkpoints", *([Path(str(named))] if named else [])]
    stores = [CheckpointStore(place.absolute()) for place in places if place.is_dir()]
    return sorted((path for store in stores for path in store.newest_first()), reverse=True)


def _checkpoint(first: RunFiles, step: str) -> Path:
    found = checkpoints_of(first)
    wanted = [path for path in found if not step or int(path.name.removeprefix("step_")) == int(step)]
    if not wanted:
        have = ", ".join(path.name for path in found) or "none"
        raise ConfigError(f"{first.directory} has no checkpoint{f' of step {step}' if step else ''}; it has: {have}.")
    return wanted[0]


def _free(output: Path) -> Path:
    """A folder beside the run's that is not there yet: NAME-fork, NAME-fork-2, ..."""
    beside = output.absolute()
    numbers = ("", *(f"-{number}" for number in range(2, 10_000)))
    return next(path for each in numbers if not os.path.lexists(path := beside.with_name(f"{beside.name}-fork{each}")))


def hidden_keys(node: Any, key: str = "") -> Iterator[str]:
    """Keys whose values are masked."""
    if isinstance(node, Mapping):
        for name, value in node.items():
            yield from hidden_keys(value, f"{key}.{name}".lstrip("."))
    elif isinstance(node, list):
        for value in node:
            yield from hidden_keys(value, key)
    elif isinstance(node, str) and MASK in node:
        yield key


def _elsewhere(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of trackers without the folders that the first run writes to."""
    return {
        name: _elsewhere(value) if isinstance(value, Mapping) else value
        for name, value in kwargs.items()
        if name not in _PLACES
    }
