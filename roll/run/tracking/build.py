"""Builds a tracker from `track_with` and `tracker_kwargs`."""

import difflib
import importlib.util
import logging
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from roll.errors import ConfigError
from roll.utils.imports import resolve
from roll.utils.secrets import find_secrets, mask, redact

if TYPE_CHECKING:
    from roll.run.tracking.tracker import TrackedRun, Tracker, Trackers

logger = logging.getLogger(__name__)

_LOCAL, _SERVICES = "roll.run.tracking.local", "roll.run.tracking.services"


@dataclass(frozen=True)
class TrackerRow:
    """A tracker that `track_with` can name: `path` leads to its class, built as `Class(run, settings)`, which raises
    whatever its service raises. `settings`: keys of tracker_kwargs that it takes. `module`: what must be installed, by
    the line `install`."""

    path: str
    settings: str = ""
    module: str = ""
    install: str = ""

    @property
    def keys(self) -> frozenset[str]:
        return frozenset(self.settings.split())


TRACKERS: Mapping[str, TrackerRow] = {
    "tensorboard": TrackerRow(f"{_LOCAL}:TensorboardTracker", "log_dir", "tensorboard", "pip install tensorboard"),
    "jsonl": TrackerRow(f"{_LOCAL}:JsonlTracker", "log_dir"),
    "stdout": TrackerRow(f"{_LOCAL}:StdoutTracker"),
    "wandb": TrackerRow(
        f"{_SERVICES}:WandbTracker",
        "project entity name notes tags group job_type mode api_key host log_dir settings",
        "wandb",
        "pip install wandb",
    ),
    "mlflow": TrackerRow(
        f"{_SERVICES}:MlflowTracker",
        "tracking_uri experiment_name project run_name name tags log_dir",
        "mlflow",
        "pip install mlflow-skinny",
    ),
    "swanlab": TrackerRow(
        f"{_SERVICES}:SwanlabTracker",
        "project workspace experiment_name name description notes tags mode logdir log_dir api_key login_kwargs",
        "swanlab",
        "pip install swanlab",
    ),
}


def make_trackers(
    names: Sequence[str],
    kwargs: Mapping[str, Any],
    directory: Path | str,
    config_dump: Mapping[str, Any],
    first_step: int = 0,
    watchers: "Mapping[str, Callable[[TrackedRun], Tracker]] | None" = None,
) -> "Trackers":
    """The named trackers as one, writing below directory; secrets in config_dump are masked here.

    A mapping under a tracker's name in `kwargs` goes to that tracker, any other key to every tracker that knows it.
    With a first_step above 0 the run is a resumed one. `watchers`: more trackers, which no key names. Raises
    ConfigError, all problems at once."""
    from roll.run.tracking.tracker import TrackedRun, Trackers

    command_line = redact({"config": config_dump, "command_line": sys.argv})["command_line"]
    problems = tracker_problems(names, kwargs) + missing_trackers(names)
    if problems:
        raise ConfigError(*problems)
    config = redact(config_dump)
    run = TrackedRun(str(config.get("exp_name") or "roll"), Path(directory).absolute(), config, first_step)
    started: dict[str, Tracker] = {}
    for name in dict.fromkeys(names):
        try:
            with _command_line(command_line):
                make: Any = resolve(TRACKERS[name].path)
                started[name] = make(run, _settings_for(name, kwargs))
        except Exception as error:
            Trackers(started).close(failed=True)
            cause = mask(f"{type(error).__name__}: {error}", find_secrets({"tracker_kwargs": kwargs}))
            raise ConfigError(f"track_with: {name} cannot start. {cause}") from error
    for name, watch in (watchers or {}).items():
        try:
            started[name] = watch(run)
        except Exception:
            logger.warning("%s does not watch this run", name, exc_info=True)
    return Trackers(started)


@contextmanager
def _command_line(masked: list[str]) -> Iterator[None]:
    """wandb records sys.argv when it starts, and an override there may be `tracker_kwargs.api_key=...`."""
    previous, sys.argv = sys.argv, masked
    try:
        yield
    finally:
        sys.argv = previous


def tracker_problems(names: Sequence[str], kwargs: Mapping[str, Any]) -> list[str]:
    """Return the problems of track_with and tracker_kwargs, found without importing any tracker's package."""
    problems = []
    for name in names:
        if name not in TRACKERS:
            near = difflib.get_close_matches(name, TRACKERS, n=1)
            hint = f"did you mean {near[0]}?" if near else f"choose from {', '.join(TRACKERS)}."
            problems.append(f"track_with: there is no tracker {name!r}; {hint}")
            continue
    chosen = {name: TRACKERS[name] for name in names if name in TRACKERS}
    for key, value in kwargs.items():
        if key in TRACKERS:
            problems.extend(_nested_problems(key, value, chosen))
        elif not any(key in tracker.keys for tracker in chosen.values()):
            known = sorted(frozenset().union(*(tracker.keys for tracker in chosen.values())))
            problems.append(
                f"tracker_kwargs.{key}: no tracker of track_with ({', '.join(names)}) knows it; they know: "
                f"{', '.join(known) or 'no settings'}."
            )
    return problems


def missing_trackers(names: Sequence[str]) -> list[str]:
    """The trackers of track_with whose package this machine lacks."""
    chosen = ((name, TRACKERS[name]) for name in names if name in TRACKERS)
    return [
        f"track_with: {name} is not installed here. Install it: {tracker.install}, or take it out."
        for name, tracker in chosen
        if tracker.module and not _is_installed(tracker.module)
    ]


def _nested_problems(name: str, value: Any, chosen: Mapping[str, TrackerRow]) -> list[str]:
    if name not in chosen:
        return [f"tracker_kwargs.{name}: {name} is not in track_with, so this would be ignored. Add it or remove this."]
    if not isinstance(value, Mapping):
        return [f"tracker_kwargs.{name}: the settings of {name} must be a mapping, got {type(value).__name__}."]
    known = chosen[name].keys
    return [
        f"tracker_kwargs.{name}.{key}: {name} has no such setting; it knows: {', '.join(sorted(known)) or 'none'}."
        for key in value
        if key not in known
    ]


def _settings_for(name: str, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    shared = {key: value for key, value in kwargs.items() if key in TRACKERS[name].keys}
    settings = kwargs.get(name)
    return {**shared, **(settings if isinstance(settings, Mapping) else {})}


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ValueError:  # a module put into sys.modules without a spec
        return True
