"""`roll run --max_restarts`: a process that starts a run, and starts it again when it crashes or is preempted."""

import ctypes
import logging
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from roll.run.saving.checkpoint import CheckpointStore
from roll.run.saving.manifest import read_manifest
from roll.utils.logging import configure_logging

logger = logging.getLogger(__name__)

FIRST_WAIT_S, LONGEST_WAIT_S = 5.0, 300.0
_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_DONE, _BAD_CONFIGURATION, _INTERRUPTED, _HUNG_UP = 0, 2, 130, 129
_NO_RESTART = {
    _BAD_CONFIGURATION: "the configuration, its plan or this machine cannot work: another start would fail alike",
    _INTERRUPTED: "it was interrupted (Ctrl-C)",
    _HUNG_UP: "its terminal was closed",
}
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)


@dataclass
class Supervisor:
    """Runs a command until it ends well, or as a person wants it, or `max_restarts` restarts in a row brought no new
    checkpoint (`checkpoints`: their folders). Ctrl-C, SIGTERM and SIGHUP are handed on, and nothing is started after
    one. SIGTERM that only the run got is a preemption, and it starts again."""

    command: Sequence[str]
    checkpoints: Sequence[Path]
    max_restarts: int
    first_wait_s: float = FIRST_WAIT_S
    _num_interrupts: int = field(default=0, init=False)
    _child: subprocess.Popen[bytes] | None = field(default=None, init=False)

    def run(self) -> int:
        """The exit code of the last start, as a shell gives it: 128 + its number where a signal ended it."""
        configure_logging(tag="supervisor")
        first = before = self._newest()
        fruitless = 0
        with self._signals():
            while True:
                code, now = self._start(resumes=before != first), self._newest()
                if code == _DONE or self._num_interrupts:
                    return code
                fruitless = 0 if now != before else fruitless
                ends = _NO_RESTART.get(code)
                if fruitless >= self.max_restarts:
                    ends = ends or f"{fruitless} restarts brought no new checkpoint (--max_restarts {fruitless})"
                if ends:
                    logger.error("the run ended with %s and is not started again: %s", _named(code), ends)
                    return code
                wait_s = min(LONGEST_WAIT_S, self.first_wait_s * 2**fruitless)
                logger.warning(
                    "the run ended with %s. It starts again in %g s, %s (%s)",
                    _named(code),
                    wait_s,
                    f"from {', '.join(path.name for path, _ in now)}" if now else "from its beginning",
                    f"{fruitless + 1} of {self.max_restarts} restarts without a new checkpoint",
                )
                self._sleep(wait_s)
                if self._num_interrupts:
                    return 128 + self._num_interrupts
                before, fruitless = now, fruitless + 1

    def _newest(self) -> tuple[tuple[Path, int], ...]:
        """The newest whole checkpoint of each folder that has one, with its place in the order of writing."""
        newest = (CheckpointStore(folder).latest() for folder in self.checkpoints)
        return tuple((path, read_manifest(path).order) for path in newest if path is not None)

    def _start(self, resumes: bool) -> int:
        """The exit code. `resumes`: from what this run has saved, wherever its YAML makes it begin."""
        self._child = subprocess.Popen(
            [*self.command, *(("resume_from_checkpoint=true",) if resumes else ())],
            process_group=0,  # a terminal's Ctrl-C comes once, by this process
            preexec_fn=_end_with_parent,
        )
        if self._num_interrupts:  # before there was one to hand it on to
            self._child.send_signal(self._num_interrupts)
        code = self._child.wait(threading.TIMEOUT_MAX)  # polls: a call that blocks hides a signal just before it
        return 128 - code if code < 0 else code

    def _sleep(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while not self._num_interrupts and (remaining := until - time.monotonic()) > 0:
            time.sleep(min(remaining, 0.5))

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """SIGHUP stays ignored where it was (nohup)."""
        mine = [each for each in _FORWARDED if signal.getsignal(each) != signal.SIG_IGN]
        previous = {each: signal.signal(each, self._hand_on) for each in mine}
        try:
            yield
        finally:
            for each, handler in previous.items():
                signal.signal(each, handler)

    def _hand_on(self, number: int, frame: FrameType | None) -> None:
        self._num_interrupts = number
        if self._child is not None:
            self._child.send_signal(number)


def _end_with_parent() -> None:
    """Ends this child with its parent: if the supervisor is killed, the run ends too, but still saves its step."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _named(code: int) -> str:
    name = {128 + each.value: each.name for each in signal.Signals}.get(code)
    return f"exit code {code}" + (f" ({name})" if name else "")
