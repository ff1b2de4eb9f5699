"""Starting runs that outlive the studio, and stopping them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from roll.errors import ConfigError
from roll.run.records.run_record import RunStart
from roll.studio.live_run import process_of
from roll.studio.yaml_edit import NO_DRAFT, Draft, set_key
from roll.utils.files import open_regular
from roll.utils.imports import code_folder

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
_TAIL_BYTES = 8000


@dataclass
class Launched:
    """A run that was started here. `directory` has the YAML, what the run prints (console.log), and its output."""

    directory: Path
    process: subprocess.Popen[bytes]

    @property
    def exit_code(self) -> int | None:
        """None while it goes on."""
        return self.process.poll()

    def last_words(self) -> str:
        with open_regular(self.directory / "console.log") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - _TAIL_BYTES))
            return file.read().decode("utf-8", "replace")

    def stop(self) -> None:
        if self.exit_code is None:
            self.process.send_signal(signal.SIGINT)


def directory_for(folder: Path, name: str) -> Path:
    """Output directory of a run of this name. Raises ConfigError for an invalid name, or one that is taken."""
    if not _NAME.fullmatch(name):
        raise ConfigError("A name of a run has letters, digits, and _ . - between them.")
    directory = folder / name
    if directory.exists():
        raise ConfigError(f"{directory} already exists: take another name.")
    return directory


def place_of(draft: Draft) -> tuple[str | None, dict[str, str]]:
    """Folder (None: the studio's) and environment of a process that reads the text of a draft."""
    directory = draft.directory if os.path.isdir(draft.directory) else None
    own = filter(None, [code_folder(), *os.environ.get("PYTHONPATH", "").split(os.pathsep)])
    path = os.pathsep.join(dict.fromkeys(map(os.path.abspath, own)))  # "." is not the folder of the draft
    return directory, os.environ | ({"PYTHONPATH": path} if path else {})


def roll_command(draft: Draft, *words: str) -> list[str]:
    """Return the command `roll WORDS` that finds the code of a draft."""
    return [sys.executable, "-P", "-m", "roll.studio.child", os.pathsep.join(draft.folders), *words]


def launch(folder: Path, name: str, text: str, draft: Draft = NO_DRAFT) -> Launched:
    """Starts `roll run` on the text, with name and output_dir set to those of the new run; `draft`: what the text began
    as. Raises ConfigError where the directory or the text stands against it."""
    directory = directory_for(folder.absolute(), name)
    text = set_key(set_key(text, ("exp_name",), name), ("output_dir",), str(directory))
    try:
        directory.mkdir(parents=True)
        file = directory / f"{name}.yaml"
        file.write_text(text, encoding="utf-8")
        with (directory / "console.log").open("wb") as log:
            command = roll_command(draft, "run", str(file))
            cwd, env = place_of(draft)
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
                cwd=cwd, env=env,
            )  # fmt: skip
    except OSError as error:
        raise ConfigError(f"{directory}: the run cannot be started: {error.strerror}") from None
    return Launched(directory, process)


def stop(start: RunStart) -> bool:
    """Ctrl-C for the process of a start: it saves its step and ends. False where it is not there, or not on this
    machine."""
    process = process_of(start)
    if process is None:
        return False
    process.send_signal(signal.SIGINT)
    return True


@dataclass(frozen=True)
class Address:
    """Address on which the studio listens, and the token that a browser must show once."""

    host: str
    token: str

    def url(self, port: int) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{port}/?token={quote(self.token, safe='')}"
