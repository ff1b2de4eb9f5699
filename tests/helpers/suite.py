"""Which tests run and in what order: the gate, or a shard of the slow tests. A pytest plugin.

The gate is every test that is not marked slow: first the quick folders, so that a fault shows in two minutes, then file
by file, longest first, so that test processes stay busy to the end. The slow tests fall into shards of whole files that
take about equally long. How long a file takes is read from tests/durations.json.
"""

from __future__ import annotations

import ast
import os
import signal
import threading
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import psutil
import pytest
from xdist.scheduler import LoadFileScheduling

from tests.helpers import durations

REPOSITORY = Path(__file__).resolve().parents[2]
NUM_SHARDS = 4
SLOW = "pytest.mark.slow"
GATE = "pytest.mark.gate("
QUICK = ("tests/layout/", "tests/unit/configs/", "tests/unit/algorithms/", "tests/unit/types/", "tests/unit/")
TOGETHER = ("tests/integration/executor/",)  # one Ray, and the workers that its tests share
GRACE_S = 30.0  # after the limit of all tests, until their processes are killed
END_S = 60.0  # from then on, until the summary is written


def test_files() -> list[str]:
    """Every test file, as node ids name it."""
    return sorted(str(path.relative_to(REPOSITORY)) for path in (REPOSITORY / "tests").rglob("test_*.py"))


def has_slow_tests(file: str) -> bool:
    text = (REPOSITORY / file).read_text()
    return SLOW in text or GATE in text


def has_gate_tests(file: str) -> bool:
    """Whether a test of this file is not marked slow. Marks of single cases count as none."""
    body = ast.parse((REPOSITORY / file).read_text()).body
    marks = [ast.unparse(node) for node in body if isinstance(node, ast.Assign)]
    if any(mark.startswith("pytestmark") and SLOW in mark for mark in marks):
        return False
    nodes = [*body, *(inner for node in body if isinstance(node, ast.ClassDef) for inner in node.body)]
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    tests = [node for node in functions if node.name.startswith("test_")]
    return any(all(ast.unparse(mark) != SLOW for mark in node.decorator_list) for node in tests)


@cache
def shards() -> tuple[frozenset[str], ...]:
    """The files with slow tests, in parts that take about equally long: the longest goes to the part that has least."""
    slow_s = durations.seconds("slow")
    parts: list[set[str]] = [set() for _ in range(NUM_SHARDS)]
    for file in durations.longest_first(filter(has_slow_tests, test_files()), slow_s):
        min(parts, key=lambda part: sum(map(slow_s, part))).add(file)
    return tuple(map(frozenset, parts))


def file_of(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0]


def in_order(items: Iterable[pytest.Item], seconds_of: Callable[[str], float]) -> list[pytest.Item]:
    """Quick folders first, then by file, longest first. The tests of a file keep their order."""

    def place(item: pytest.Item) -> tuple[int, float, str]:
        file = file_of(item)
        quick = next((number for number, folder in enumerate(QUICK) if file.startswith(folder)), len(QUICK))
        return quick, -seconds_of(file), file

    return sorted(items, key=place)


def mark_slow(test: Sequence[pytest.Item]) -> None:
    """Marks those cases of a test that its `gate` does not name. Raises ValueError for a name that no case has."""
    cases = {item.nodeid.partition("[")[2].removesuffix("]"): item for item in test}
    for mark in filter(None, [item.get_closest_marker("gate") for item in test][:1]):
        if unknown := sorted(set(mark.args) - cases.keys()):
            raise ValueError(f"gate names {unknown}; there are {sorted(cases)}")
        for case in cases.keys() - set(mark.args):
            cases[case].add_marker(pytest.mark.slow)


class Selection:
    """Keeps the tests of the shard that was asked for, and puts tests in order."""

    def __init__(self, shard: str | None) -> None:
        self.shard = None
        if shard:
            number, _, of = shard.partition("/")
            if of != str(NUM_SHARDS) or number not in map(str, range(1, NUM_SHARDS + 1)):
                raise pytest.UsageError(
                    f"--shard={shard}: there are shards 1/{NUM_SHARDS} to {NUM_SHARDS}/{NUM_SHARDS}"
                )
            self.shard = int(number) - 1
        self.seconds = durations.seconds("gate" if self.shard is None else "slow")

    @pytest.hookimpl(wrapper=True)
    def pytest_pycollect_makeitem(self, collector: pytest.Collector, name: str) -> Generator[None, Any, Any]:
        """Here all cases of a test are there, whatever the run was narrowed to."""
        made = yield
        if isinstance(made, list) and name.startswith("test"):
            try:
                mark_slow(made)
            except ValueError as why:
                raise collector.CollectError(f"{collector.nodeid}::{name}: {why}") from None
        return made

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Any) -> ByFile | None:
        return ByFile(config, log) if config.getoption("dist") == "loadfile" else None

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        if self.shard is not None:
            others = frozenset().union(*(shards()[: self.shard] + shards()[self.shard + 1 :]))
            if self.shard:  # the first one has whatever no search of the files finds
                others |= {file_of(item) for item in items} - shards()[self.shard]
            config.hook.pytest_deselected(items=[item for item in items if file_of(item) in others])
            items[:] = [item for item in items if file_of(item) not in others]
        items[:] = in_order(items, self.seconds)


class ByFile(LoadFileScheduling):
    """Gives a file to one test process, and a folder whose files share what takes long to start."""

    def _split_scope(self, nodeid: str) -> str:
        return scope_of(nodeid)


def scope_of(nodeid: str) -> str:
    """What one test process runs whole: a file, or a folder."""
    file = nodeid.partition("::")[0]
    return next((folder for folder in TOGETHER if file.startswith(folder)), file)


class Watchdog(threading.Thread):
    """Tells of a failure when it happens, and ends all tests at a time limit: what was running then is named."""

    def __init__(self, config: pytest.Config, limit_s: float) -> None:
        super().__init__(daemon=True)
        self.config, self.limit_s = config, limit_s
        self.running: dict[str, float] = {}  # test -> when it started
        self.interrupted = threading.Event()
        self.stdout = os.dup(1)  # while a test runs, pytest has put a file in its place

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        self.session = session
        if self.limit_s:
            signal.signal(signal.SIGINT, signal.default_int_handler)  # what a shell starts in the background ignores it
            self.start()

    def pytest_keyboard_interrupt(self) -> None:
        self.interrupted.set()

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.running[nodeid] = time.monotonic()

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self.running.pop(nodeid, None)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when not in ("setup", "call", "teardown"):  # its process died: nothing else is told of this test
            self.running.pop(report.nodeid, None)
        if report.failed:
            cause = str(report.longrepr).strip().splitlines()[-1:] or [""]
            terminal: Any = self.config.pluginmanager.getplugin("terminalreporter")
            if terminal is not None:
                terminal.ensure_newline()
                terminal.write_line(f"FAILED {report.nodeid} ({report.when}): {cause[0]}")

    def wait(self) -> None:
        """Returns when the time is over."""
        time.sleep(self.limit_s)

    def run(self) -> None:
        self.wait()
        now = time.monotonic()
        tests = ", ".join(f"{test} (for {now - began:.0f} s)" for test, began in self.running.items()) or "no test"
        text = f"all tests together may take {self.limit_s:.0f} s; running at the end: {tests}"
        os.write(self.stdout, f"\nSTOPPED: {text}\n".encode())
        self.session.shouldstop = text
        distributed: Any = self.config.pluginmanager.getplugin("dsession")
        if distributed:
            distributed.shouldstop = text
            distributed._max_worker_restart = 0  # those that are killed below are not replaced
        started = descendants()
        time.sleep(GRACE_S)
        kill(started | descendants())
        until = time.monotonic() + END_S
        while not distributed and not self.interrupted.is_set() and time.monotonic() < until:
            os.kill(os.getpid(), signal.SIGINT)  # one that comes just before a test sleeps is not heard of
            self.interrupted.wait(10.0)  # a second one would end the summary, which a busy machine is slow to begin
        time.sleep(max(0.0, until - time.monotonic()))
        kill(descendants())
        os._exit(int(pytest.ExitCode.INTERRUPTED))


def descendants() -> set[psutil.Process]:
    return set(psutil.Process().children(recursive=True))


def kill(processes: Iterable[psutil.Process]) -> None:
    for process in processes:
        with suppress(psutil.Error):
            process.kill()
