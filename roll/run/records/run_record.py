"""Record of a run in `run.json` beside its metrics: its configuration, and how each of its starts ended."""

import json
import logging
import os
import re
import socket
import subprocess
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from roll.configs.sections.run import RunConfig
from roll.run.display.view import View
from roll.run.saving.manifest import reason
from roll.utils.files import read_object, write_whole
from roll.utils.imports import own_folders
from roll.utils.secrets import find_secrets, mask, redact
from roll.utils.text import storable
from roll.utils.version import VERSION

logger = logging.getLogger(__name__)

RUN_FILE = "run.json"
FORK_FILE = "fork.yaml"


class RunStart(BaseModel):
    """One process of the run, with times in ISO 8601, UTC. `ended` and `exit_code` are None while it goes on, and for
    ever where it was killed; `cause`: why it failed; `host`, `machine`: the driver's, by name and in words; `commit`:
    of roll's checkout, with -dirty where files differ from it."""

    model_config = ConfigDict(frozen=True)

    started: str
    steps_done: int
    pid: int
    ended: str | None = None
    exit_code: int | None = None
    cause: str = ""
    host: str = ""
    machine: str = ""
    commit: str = ""


class RunStory(BaseModel):
    """The file. `curves`: the metrics that say whether it learns, of the training and of the validation. `config`: all
    keys; `settings`: those that are set, which make the same run again; both with secrets as ***. `folders`: of the
    user's code. `directory`: which relative paths start from. `forked`: what it is a fork of, and why."""

    model_config = ConfigDict(frozen=True)

    roll_version: str
    curves: tuple[str, str]
    config: dict[str, Any]
    starts: tuple[RunStart, ...]
    settings: dict[str, Any] = {}
    folders: tuple[str, ...] = ()
    directory: str = ""
    forked: str = ""


class RunRecord:
    """Writes the file when the run begins and when it ends. A disk that fails ends no run."""

    def __init__(self, directory: Path, view: View):
        self.cause = ""
        """Why the run fails, once that is known."""
        self._path, self._view = directory / RUN_FILE, view
        self._story: RunStory | None = None
        self._secrets: frozenset[str] = frozenset()

    def begin(self, config: RunConfig, steps_done: int) -> None:
        """A run that goes on keeps the starts before this one."""
        tree = config.model_dump(mode="json")
        self._secrets = find_secrets(tree)
        start = RunStart(
            started=_now(), steps_done=steps_done, pid=os.getpid(), host=socket.gethostname(), machine=_machine(),
            commit=commit_of(Path(__file__).parents[3]),
        )  # fmt: skip
        self._write(
            RunStory(
                roll_version=VERSION,
                curves=(self._view.training.metric, self._view.validation.metric),
                config=redact(tree),
                starts=(*(self._earlier() if steps_done else ()), start),
                settings=redact(_settings(config)),
                folders=tuple(own_folders()),
                directory=os.getcwd(),
                forked=_forked(Path(config.output_dir)),
            )
        )

    def end(self, exit_code: int) -> None:
        if self._story is None:
            return
        cause = storable(mask(self.cause, self._secrets))
        last = self._story.starts[-1].model_copy(update={"ended": _now(), "exit_code": exit_code, "cause": cause})
        self._write(self._story.model_copy(update={"starts": (*self._story.starts[:-1], last)}))

    def _earlier(self) -> tuple[RunStart, ...]:
        try:
            return read_story(self._path).starts
        except (OSError, ValueError):
            return ()

    def _write(self, story: RunStory) -> None:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(self._path, json.dumps(story.model_dump(), indent=1) + "\n")
        except OSError as error:
            logger.warning("logging_dir: %s cannot be written; the run continues: %s", self._path, error)
        self._story = story


def _forked(output: Path) -> str:
    """The first line of the YAML that `roll fork` and `roll why` make."""
    try:
        first = (output / FORK_FILE).open(encoding="utf-8").readline()
    except OSError:
        return ""
    return first.removeprefix("# ").strip() if first.startswith("# ") else ""


def _settings(config: RunConfig) -> dict[str, Any]:
    """The keys that are set, without the steps that follow from epochs."""
    follows = {"max_steps"} if config.num_train_epochs is not None else None
    return config.model_dump(mode="json", exclude_unset=True, exclude=follows)


def read_story(path: Path) -> RunStory:
    """OSError where there is no such file, ValueError where it holds something else."""
    try:
        return RunStory.model_validate(read_object(path))
    except ValidationError as error:
        raise ValueError(reason(error)) from None


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


_CPUS = Path("/proc/cpuinfo")
_GPUS = Path("/proc/driver/nvidia/gpus")
_GIB = 1 << 30


def _machine() -> str:
    """Describe the driver's machine. Example: "16 cores, 128 GiB, Intel(R) Xeon(R) CPU, 8 x NVIDIA H100"."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / _GIB
    parts = [f"{len(os.sched_getaffinity(0))} cores", f"{memory:.0f} GiB"]
    if _CPUS.is_file() and (cpu := re.search(r"model name\s*:\s*(.+)", _CPUS.read_text(errors="replace"))):
        parts.append(cpu[1])
    texts = [file.read_text(errors="replace") for file in sorted(_GPUS.glob("*/information"))]
    models = Counter(match[1] for text in texts if (match := re.search(r"Model:\s*(.+)", text)))
    return ", ".join([*parts, *(f"{count} x {model}" for model, count in models.items())])


def commit_of(checkout: Path) -> str:
    """The commit of a git checkout; empty where the folder is none, or there is no git."""
    command = (
        "git",
        "--no-optional-locks",
        "-C",
        str(checkout),
        "describe",
        "--always",
        "--dirty",
        "--abbrev=10",
        "--exclude=*",
    )
    variables = os.environ | {"GIT_CEILING_DIRECTORIES": str(checkout.parent)}  # not of a repository around it
    try:
        done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=_GIT_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


_GIT_TIMEOUT_S = 10.0
