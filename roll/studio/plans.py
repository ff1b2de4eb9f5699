"""Plans of a YAML's text, as `roll plan` gives them, and the keys that their problems name."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import tempfile
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from roll.studio.launch import place_of, roll_command
from roll.studio.yaml_edit import NO_DRAFT, Draft, KeyPath

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


_ENTRIES = re.compile(r"(\w+)\.\{([^{}]*)\}((?:\.\w+)*)")
_NAME = re.compile(r"[A-Za-z_][\w-]*(?:\.[A-Za-z_][\w-]*)*")


def named_keys(problem: str, is_key: Callable[[KeyPath], bool]) -> list[KeyPath]:
    """The keys that a problem names: the one that it begins with, else those with a dot or an underscore in it.

    Examples: "max_steps: -3 must be ..." -> max_steps; "rewards.{a, b}.tag: ..." -> rewards.a.tag, rewards.b.tag;
    "The product of rollout_batch_size and ... " -> rollout_batch_size.
    """
    if entries := _ENTRIES.match(problem):
        names = [f"{entries[1]}.{name.strip()}{entries[3]}" for name in entries[2].split(",")]
        return [path for name in names if is_key(path := tuple(name.split(".")))]
    tokens = [match[0] for match in _NAME.finditer(problem)]
    first = _NAME.match(problem)
    if first and is_key(tuple(first[0].split("."))):
        return [tuple(first[0].split("."))]
    paths = [tuple(token.split(".")) for token in dict.fromkeys(tokens) if "." in token or "_" in token]
    return [path for path in paths if is_key(path)]
