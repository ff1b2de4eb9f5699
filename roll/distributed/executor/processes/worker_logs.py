"""Output of the workers of a local cluster: an engine's own log, or the last lines of a native crash, are nowhere
else."""

import os
import re
import stat
from pathlib import Path

from roll.utils.secrets import mask
from roll.utils.text import visible

_HEADER_LINES = 5
_NAME = re.compile(r"[\w-][\w.-]{0,99}", re.ASCII)


def keep_logs(source: Path, directory: Path) -> None:
    """Copies the workers' logs in `source`, under the name that each worker gave itself (`Host`). A worker can write
    anything there: links are not followed, and no name leads out of `directory`."""
    for path in sorted(source.glob("worker-*")):
        text = _read(path)
        if text is None:
            continue
        lines = text.splitlines(keepends=True)
        header = [line for line in lines[:_HEADER_LINES] if line.startswith(":")]  # :job_id:, :actor_name:, :worker:
        if len(lines) > len(header):
            directory.mkdir(parents=True, exist_ok=True)
            _append(directory / f"{_name(header) or path.stem}{path.suffix}", _shown(lines[len(header) :]))


def _shown(lines: list[str]) -> str:
    """Lines that may hold what a model wrote; the carriage returns of progress bars end lines here."""
    return "".join(visible(line.rstrip("\r\n")) + "\n" for line in mask("".join(lines)).splitlines(keepends=True))


def _name(header: list[str]) -> str | None:
    names = (line.removeprefix(":worker:").strip() for line in header if line.startswith(":worker:"))
    return next((name for name in names if _NAME.fullmatch(name)), None)


def _read(path: Path) -> str | None:
    """The text of a file of this user's; None for anything else."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    file_stat = os.fstat(descriptor)
    if not stat.S_ISREG(file_stat.st_mode) or file_stat.st_uid != os.getuid():
        os.close(descriptor)
        return None
    with os.fdopen(descriptor, errors="replace") as file:
        return file.read()


def _append(path: Path, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o666)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
