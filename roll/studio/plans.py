"""Plans of a YAML's text, as `roll plan` gives them, and the keys that their problems name."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from roll.studio.yaml_edit import KeyPath

_MOST_S = 60.0


@dataclass(frozen=True)
class Plan:
    """`text`: what was printed, plan and warnings. `problems`: why it cannot start, empty where it can."""

    text: str
    problems: tuple[str, ...]
    is_good: bool


@dataclass(frozen=True)
class _Helper:
    """The process that makes the plans, and the socket to it; it ends when the socket is closed."""

    process: subprocess.Popen[bytes]
    control: socket.socket


class Planner:
    """Makes plans in forks of a process that has imported what they need (plan_process.py): a plan may import code of
    the user's, and takes a tenth of a second there. All calls come from one event loop at a time."""

    def __init__(self) -> None:
        self._helper: _Helper | None = None
        self._imported: set[str] = set()

    def begin(self) -> None:
        """Starts the process, if it is not there, so that it is ready when the first plan is asked for."""
        if self._helper is None or self._helper.process.poll() is not None:
            self.end()
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                command = (sys.executable, "-m", "roll.studio.plan_process", str(theirs.fileno()))
                process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()], start_new_session=True
                )
            self._helper, self._imported = _Helper(process, ours), set()

    def end(self) -> None:
        if self._helper is not None:
            self._helper.control.close()
            self._helper.process.wait()
            self._helper = None

    async def plan(self, text: str, name: str, elsewhere: bool = False) -> Plan:
        """Relative paths are those of the folder that the studio was started in, as with a run. `elsewhere`: it is to
        run on a machine with other files. A caller that is cancelled ends the plan."""
        with tempfile.TemporaryDirectory(prefix="roll-studio-", ignore_cleanup_errors=True) as folder:
            file = Path(folder) / f"{name}.yaml"
            file.write_text(text, encoding="utf-8")
            words = ["plan", str(file), *(["--elsewhere"] if elsewhere else [])]
            try:
                async with asyncio.timeout(_MOST_S):
                    code = await self._run(words, folder)
            except TimeoutError:
                return Plan("", (f"The plan has not ended within {_MOST_S:.0f} s.",), False)
            except OSError as error:
                return Plan("", (f"The process that makes plans cannot be reached: {error}",), False)
            printed = (Path(folder) / stream for stream in ("stdout", "stderr"))
            shown, wrong = (
                stream.read_text("utf-8", "replace").replace(f"{folder}{os.sep}", "") if stream.exists() else ""
                for stream in printed
            )
        if code is None:
            wrong = (
                wrong.strip() or "The process that makes plans was ended from outside. Change something to try again."
            )
        return Plan(shown.strip(), problems_of(wrong), code == 0)

    async def _run(self, words: Sequence[str], folder: str) -> int | None:
        """The exit code of a command of roll; None where its process was killed."""
        ours, theirs = socket.socketpair()
        with theirs:
            self._send({"words": words, "folder": folder}, [theirs.fileno()])
        reader, writer = await asyncio.open_connection(sock=ours)
        pid, answer = 0, b""
        try:
            pid = int(await reader.readline() or 0)
            answer = await reader.read()
        finally:
            writer.close()
            if pid and not answer:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        if not answer:
            return None
        ending = json.loads(answer)
        if new := set(ending["modules"]) - self._imported:  # the next plan of this kind has them at hand
            self._imported |= new
            self._send({"modules": sorted(new)}, [])
        return ending["code"]

    def _send(self, request: Mapping[str, Any], descriptors: Sequence[int]) -> None:
        self.begin()
        assert self._helper is not None
        socket.send_fds(self._helper.control, [json.dumps(request).encode()], descriptors)


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
