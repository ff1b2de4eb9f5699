"""`roll run --max_restarts`: a process that starts a run, and starts it again when it crashes or is preempted."""

import ctypes
import logging
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import IO

from roll.configs.sections.run import RunConfig
from roll.run.records.run_record import RESTARTS_FILE, Restart
from roll.run.saving.checkpoint import CheckpointStore
from roll.run.saving.manifest import read_manifest
from roll.utils.logging import configure_logging
from roll.utils.secrets import find_secrets, mask
from roll.utils.text import visible

logger = logging.getLogger(__name__)

FIRST_WAIT_S, LONGEST_WAIT_S = 5.0, 300.0
_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_DONE, _BAD_CONFIGURATION, _INTERRUPTED, _HUNG_UP = 0, 2, 130, 129
_NO_RESTART = {
    _BAD_CONFIGURATION: "the configuration, its plan or this machine cannot work: another start would fail alike",
    _INTERRUPTED: "it was interrupted (Ctrl-C)",
    _HUNG_UP: "its terminal was closed",
}
_LAST_LINES = 20
_LAST_BYTES = 16_384
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)


@dataclass(frozen=True)
class Watched:
    """Description of the supervised run, and how to watch it. `checkpoints`: the folders whose newest one tells
    progress. `logs`: what drivers write beside their terminal. `secrets` are masked in what is kept of its last
    lines."""

    command: tuple[str, ...]
    checkpoints: tuple[Path, ...]
    output_dir: Path
    logs: tuple[Path, ...]
    secrets: tuple[str, ...] = ()


def watched(command: Sequence[str], runs: Sequence[RunConfig]) -> Watched:
    """A command that runs these: one, or stages, whose folders are beside each other. Its output folder is theirs."""
    first = Path(runs[0].output_dir)
    return Watched(
        (*command,),
        tuple(Path(run.checkpoint_dir) for run in runs),
        first if len(runs) == 1 else first.parent,
        tuple(Path(run.logging_dir) / "driver.log" for run in runs),
        tuple(find_secrets([run.model_dump() for run in runs])),
    )


@dataclass
class Supervisor:
    """Runs a command until it ends well, or as a person wants it, or `max_restarts` restarts in a row brought no new
    checkpoint. Each end that is neither is a line of restarts.jsonl.

    Ctrl-C, SIGTERM and SIGHUP are handed on, as often as they come, and nothing is started after one: who sends them to
    this process wants the end of both. SIGTERM that only the run got is a preemption, and it starts again.

    Example: with max_restarts 2 and ends "crash, crash, checkpoint and crash, crash, crash, crash" the run is started
    six times, and the last crash is the end: three times in a row nothing new was saved.
    """

    watched: Watched
    max_restarts: int
    first_wait_s: float = FIRST_WAIT_S
    _num_interrupts: int = field(default=0, init=False)
    _child: subprocess.Popen[str] | None = field(default=None, init=False)

    def run(self) -> int:
        """The exit code of the last start, as a shell gives it: 128 + its number where a signal ended it."""
        configure_logging(tag="supervisor", secrets=self.watched.secrets)
        first = before = self._newest()
        fruitless = starts = 0
        with self._signals():
            while True:
                starts += 1
                started = time.monotonic()
                code, last_lines = self._start(resumes=before != first)
                now = self._newest()
                if code == _DONE or self._num_interrupts:
                    return code
                fruitless = 0 if now != before else fruitless
                ends = _NO_RESTART.get(code) or self._budget_problem(fruitless)
                wait_s = 0.0 if ends else min(LONGEST_WAIT_S, self.first_wait_s * 2**fruitless)
                self._note(
                    starts, code, time.monotonic() - started, now, fruitless, None if ends else wait_s, last_lines
                )
                if ends:
                    logger.error("the run ended with %s and is not started again: %s", _named(code), ends)
                    return code
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

    def _budget_problem(self, fruitless: int) -> str | None:
        if fruitless < self.max_restarts:
            return None
        return f"{fruitless} restarts brought no new checkpoint (--max_restarts {self.max_restarts})"

    def _newest(self) -> tuple[tuple[Path, int], ...]:
        """The newest whole checkpoint of each folder that has one, with its place in the order of writing."""
        newest = (CheckpointStore(folder).latest() for folder in self.watched.checkpoints)
        return tuple((path, read_manifest(path).order) for path in newest if path is not None)

    def _start(self, resumes: bool) -> tuple[int, list[str]]:
        """Exit code and last lines. `resumes`: from what this run has saved, wherever its YAML makes it begin."""
        more = ("resume_from_checkpoint=true",) if resumes else ()
        sizes = {log: _size(log) for log in self.watched.logs}
        on_terminal = sys.stderr.isatty()
        self._child = subprocess.Popen(
            [*self.watched.command, *more],
            stderr=None if on_terminal else subprocess.PIPE,
            text=True,
            errors="replace",
            process_group=0,  # a terminal's Ctrl-C comes once, by this process
            preexec_fn=_end_with_parent,
        )
        if self._num_interrupts:  # before there was one to hand it on to
            self._child.send_signal(self._num_interrupts)
        last: deque[str] = deque(maxlen=_LAST_LINES)
        reader = None
        if self._child.stderr is not None:
            reader = threading.Thread(target=_pass_on, args=(self._child.stderr, last), daemon=True)
            reader.start()
        code = self._child.wait(threading.TIMEOUT_MAX)  # polls: a call that blocks hides a signal just before it
        if reader is not None:
            reader.join(timeout=5)  # a process that it left behind may hold the pipe
        lines = _end_of(sizes) if on_terminal else [*last]
        return (128 - code if code < 0 else code), [visible(mask(line, self.watched.secrets)) for line in lines]

    def _note(
        self,
        starts: int,
        code: int,
        ran_s: float,
        newest: tuple[tuple[Path, int], ...],
        fruitless: int,
        wait_s: float | None,
        last_lines: Sequence[str],
    ) -> None:
        row = Restart(
            time=datetime.now(UTC).isoformat(timespec="seconds"),
            start=starts,
            exit_code=code,
            signal=_signal_name(code),
            ran_s=round(ran_s, 1),
            checkpoints=tuple(str(path) for path, _ in newest),
            restarts_without_progress=fruitless,
            restarts_in_s=wait_s,
            last_lines=tuple(last_lines),
        )
        file = self.watched.output_dir / RESTARTS_FILE
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            with file.open("a", encoding="utf-8") as rows:
                rows.write(row.model_dump_json() + "\n")
        except OSError as error:  # what ended the run may be what is wrong here, such as a disk that was full
            logger.warning("output_dir: %s is not written: %s", file, error)

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


def _pass_on(stream: IO[str], last: deque[str]) -> None:
    """Copies the stream to stderr until it ends, even if our stderr fails: a run whose pipe nobody reads would hang."""
    for line in stream:
        last.append(line.rstrip("\n"))
        with suppress(OSError):  # its reader has gone, or its disk is full
            sys.stderr.write(line)
            sys.stderr.flush()


def _size(log: Path) -> int:
    return log.stat().st_size if log.exists() else 0


def _end_of(sizes: Mapping[Path, int]) -> list[str]:
    """The last lines that were added since logs had so many bytes: of the newest that grew."""
    grown = [log for log, size in sizes.items() if _size(log) > size]
    if not grown:
        return []
    log = max(grown, key=lambda each: each.stat().st_mtime_ns)
    with log.open("rb") as file:
        file.seek(max(sizes[log], log.stat().st_size - _LAST_BYTES))
        return file.read().decode(errors="replace").splitlines()[-_LAST_LINES:]


def _signal_name(code: int) -> str | None:
    """Name of the signal for an exit code above 128; None if there is no such signal."""
    known = {each.value: each.name for each in signal.Signals}
    return known.get(code - 128)


def _named(code: int) -> str:
    name = _signal_name(code)
    return f"exit code {code}" + (f" ({name})" if name else "")
