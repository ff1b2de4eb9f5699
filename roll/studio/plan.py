"""The plan of a YAML's text, and all that is wrong with it: `roll plan` in a process of its own, since a plan may
import code of the user's."""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

_MOST_S = 60.0


@dataclass(frozen=True)
class Plan:
    """`text`: what was printed, plan and warnings. `problems`: why it cannot start, empty where it can."""

    text: str
    problems: tuple[str, ...]
    is_good: bool


async def plan_of(text: str, name: str, elsewhere: bool = False) -> Plan:
    """Relative paths are those of the folder that the studio was started in, as with a run. `elsewhere`: it is to run
    on a machine with other files. A caller that is cancelled ends the process."""
    with tempfile.TemporaryDirectory(prefix="roll-studio-") as folder:
        file = Path(folder) / f"{name}.yaml"
        file.write_text(text, encoding="utf-8")
        words = (sys.executable, "-m", "roll", "plan", str(file), *(("--elsewhere",) if elsewhere else ()))
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            *words, stdout=pipe, stderr=pipe, stdin=asyncio.subprocess.DEVNULL
        )
        try:
            said, complained = await asyncio.wait_for(process.communicate(), _MOST_S)
        except TimeoutError:
            return Plan("", (f"The plan has not ended within {_MOST_S:.0f} s.",), False)
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
    shown = said.decode("utf-8", "replace").replace(f"{folder}{os.sep}", "")
    wrong = complained.decode("utf-8", "replace").replace(f"{folder}{os.sep}", "")
    return Plan(shown.strip(), _problems(wrong), process.returncode == 0)


def _problems(complaint: str) -> tuple[str, ...]:
    """The findings of a complaint; the whole of one that has none."""
    lines = complaint.strip().split("\n")
    starts = [number for number, line in enumerate(lines) if line.startswith("  - ")]
    if not starts:
        return tuple(filter(None, [complaint.strip()]))
    ends = [*starts[1:], len(lines)]
    return tuple("\n".join(lines[start:end])[4:] for start, end in zip(starts, ends, strict=True))
