"""Workers that misbehave. They import nothing that takes long: tests replace many of them."""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
import threading
import time
from typing import Any


class ToyWorker:
    """A worker that misbehaves on request."""

    def __init__(self, name: str = "toy"):
        self.name = name
        self.num_calls = 0

    def add(self, a: int, b: int) -> int:
        self.num_calls += 1
        return a + b

    def count(self) -> int:
        return self.num_calls

    def environment(self) -> dict[str, str]:
        return dict(os.environ)

    def pid(self) -> int:
        return os.getpid()

    def say(self, text: str) -> None:
        print(text, flush=True)

    def log(self, name: str, text: str, count: int = 1) -> None:
        for number in range(count):
            logging.getLogger(name).info("%s (%d)", text, number)

    def start_child(self) -> int:
        """A process that would outlive its worker."""
        return subprocess.Popen(["sleep", "1000"], start_new_session=True).pid

    def exit_code_of_a_child(self, code: int) -> int:
        return subprocess.run(["sh", "-c", f"exit {code}"]).returncode

    def fail(self, text: str) -> None:
        raise ValueError(text)

    def escape(self, kind: str) -> object:
        """Leaves the call in a way that no `except Exception` sees, or with what does not travel."""
        match kind:
            case "interrupt":
                raise KeyboardInterrupt("as Ctrl-C")
            case "exit":
                sys.exit("enough")
            case "panic":
                raise Panic("unwrap on None")
            case "cancel":
                raise asyncio.CancelledError
            case "mute":
                raise Mute
            case "lock":
                return threading.Lock()
            case "trap":
                return Trap()
        raise AssertionError(kind)

    def sleep(self, seconds: float) -> float:
        time.sleep(seconds)
        return seconds

    def die(self) -> None:
        os.kill(os.getpid(), 9)

    def fail_on_rank(self, rank: int) -> None:
        """Rank `rank` raises while the others wait for it in a collective."""
        distributed = _joined()
        distributed.barrier()
        if distributed.get_rank() == rank:
            raise ValueError("the root cause")
        distributed.barrier()

    def die_on_rank(self, rank: int) -> None:
        distributed = _joined()
        distributed.barrier()
        if distributed.get_rank() == rank:
            os.kill(os.getpid(), 9)
        distributed.barrier()


def _joined() -> Any:
    from torch import distributed

    from tests.fakes import join_group

    join_group()
    return distributed


class Panic(BaseException):
    """What a panic in Rust becomes, in bindings."""


class Mute(Exception):
    """An error whose text is an error."""

    def __str__(self) -> str:
        raise RuntimeError("not even that")


class Trap:
    """What cannot be read where it arrives."""

    def __reduce__(self) -> tuple[object, ...]:
        return int, ("no number",)


class BrokenWorker:
    """A worker that cannot be constructed."""

    def __init__(self) -> None:
        raise RuntimeError("no such model")
