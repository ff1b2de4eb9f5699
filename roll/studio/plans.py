"""Plans of a YAML's text, as `roll plan` gives them."""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
from asyncio.subprocess import DEVNULL, PIPE
from dataclasses import dataclass
from pathlib import Path

from roll.studio.launch import place_of, roll_command
from roll.studio.yaml_edit import NO_DRAFT, Draft

_MOST_S = 60.0


@dataclass(frozen=True)
class Plan:
    """`text`: what was printed, plan and warnings. `problems`: why it cannot start, empty where it can."""

    text: str
    problems: tuple[str, ...]
    is_good: bool


async def make_plan(text: str, name: str, elsewhere: bool = False, draft: Draft = NO_DRAFT) -> Plan:
    """Runs `roll plan` on a YAML's text in a process of its own: a plan may import code of the user's. `elsewhere`: it
    is to run on a machine with other files. `draft`: what the text began as; relative paths start where it says, by
    default in the studio's folder, as with a run. A caller that is cancelled ends the plan."""
    with tempfile.TemporaryDirectory(prefix="roll-studio-") as folder:
        file = Path(folder) / f"{name}.yaml"
        file.write_text(text, encoding="utf-8")
        words = ["plan", str(file), "--all", *(["--elsewhere"] if elsewhere else [])]
        cwd, env = place_of(draft)
        process = await asyncio.create_subprocess_exec(
            *roll_command(draft, *words), stdin=DEVNULL, stdout=PIPE, stderr=PIPE, start_new_session=True,
            cwd=cwd, env=env,
        )  # fmt: skip
        try:
            async with asyncio.timeout(_MOST_S):
                printed = await process.communicate()
        except TimeoutError:
            return Plan("", (f"The plan has not ended within {_MOST_S:.0f} s.",), False)
        finally:
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
    shown, wrong = (stream.decode("utf-8", "replace").replace(f"{folder}{os.sep}", "") for stream in printed)
    is_good = process.returncode == 0  # it still says on stderr what takes a while
    return Plan(shown.strip(), () if is_good else problems_of(wrong), is_good)


def problems_of(complaint: str) -> tuple[str, ...]:
    """The findings of a complaint; the whole of one that has none."""
    lines = complaint.strip().split("\n")
    starts = [number for number, line in enumerate(lines) if line.startswith("  - ")]
    if not starts:
        return tuple(filter(None, [complaint.strip()]))
    ends = [*starts[1:], len(lines)]
    return tuple("\n".join(lines[start:end])[4:] for start, end in zip(starts, ends, strict=True))
