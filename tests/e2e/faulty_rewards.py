"""Rewards of whole runs: one that speaks, and one that misbehaves as its tickets say, each once: empty files
`<number>-<how>` in a directory, taken in order by whichever worker comes first."""

from __future__ import annotations

import hashlib
import os
import signal
import time
from pathlib import Path
from typing import Any

from roll.rewards.base import RewardInput

HANGS, DIES = ("sleeps", "spins"), ("exits", "is killed")
FAILS = ("raises", "raises oddly", "interrupts", "says nan", "says infinity", "says text", "says nothing", "leaves")
RETURNS: dict[str, Any] = {"says nan": float("nan"), "says infinity": float("inf"), "says text": "1.0"}


def faulty(sample: RewardInput, tickets: str, share: float) -> Any:
    """Else a number that depends on the answer alone. About `share` of the answers take a ticket."""
    chance = int(hashlib.sha256((sample.prompt_text + sample.response_text).encode()).hexdigest()[:8], 16) / 16**8
    ticket = _take(Path(tickets)) if chance < share else None
    return chance if ticket is None else _misbehave(ticket.name.rpartition("-")[2])


def talkative(sample: RewardInput) -> float:
    """Says something in its process."""
    print("an answer was judged", flush=True)
    return float(len(sample.response_text) % 2)


def _take(directory: Path) -> Path | None:
    for ticket in sorted(directory.glob("[0-9]*-*")):
        try:
            return ticket.rename(directory / f"taken-{ticket.name}")
        except FileNotFoundError:  # another worker's
            continue
    return None


def _misbehave(how: str) -> Any:
    if how == "raises":
        raise ValueError("the judge is gone")
    if how == "raises oddly":
        raise type("Odd", (Exception,), {"__str__": lambda self: 1 / 0})()
    if how == "interrupts":
        raise KeyboardInterrupt
    if how == "leaves":
        raise SystemExit(3)
    if how == "sleeps":
        time.sleep(600)
    while how == "spins":
        pass
    if how == "exits":
        os._exit(3)
    if how == "is killed":
        os.kill(os.getpid(), signal.SIGKILL)
    return RETURNS.get(how)
