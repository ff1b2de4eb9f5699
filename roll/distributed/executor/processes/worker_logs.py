"""Output of the workers of a local cluster, such as an engine's own log, or the last lines of a native crash."""

import re
from pathlib import Path

from roll.utils.secrets import mask
from roll.utils.text import visible

_WORKER = re.compile(r":worker:([\w-][\w.-]{0,99})", re.ASCII)
_HEADER_LINES = 5


def keep_logs(source: Path, directory: Path) -> None:
    """Copies the workers' logs in `source`, under the name that each worker gave itself (`Host`)."""
    for path in sorted(source.glob("worker-*")):
        if path.is_symlink() or not path.is_file():
            continue
        lines = mask(path.read_text(encoding="utf-8", errors="replace")).splitlines()
        header = [line for line in lines[:_HEADER_LINES] if line.startswith(":")]  # :job_id:, :actor_name:, :worker:
        name = next((match[1] for line in header if (match := _WORKER.fullmatch(line))), path.stem)
        if len(lines) > len(header):
            directory.mkdir(parents=True, exist_ok=True)
            with (directory / f"{name}{path.suffix}").open("a", encoding="utf-8") as file:
                file.writelines(f"{visible(line)}\n" for line in lines[len(header) :])
