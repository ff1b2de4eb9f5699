"""Where the minutes of the tests are: seconds by file and fixture, starts of processes, CPU seconds by kind of process.

With `--record-durations=NAME` a run writes what it measured to tests/durations.json. The slow tests are divided into
shards by that file, and the order of all tests comes from it. A run of some tests replaces what is known of their files
and leaves the rest.
"""

import json
import os
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
PAGE = REPOSITORY / "tests" / "durations.json"
UNKNOWN_S = 60.0  # what a file counts that was never measured
SHORT_S = 0.5  # a fixture that takes less is not listed
SAMPLE_S = 2.0  # between two looks at the processes
SAVE_S = 60.0
# Kinds of process by what their command line holds: the first one that fits.
KINDS = (
    ("compiler", ("cc1", "cc1plus", "/as ", "collect2", "nvcc")),
    ("vLLM engine", ("VLLM::",)),
    ("SGLang engine", ("sglang::",)),
    ("Ray's own", ("raylet", "gcs_server", "ray/_private", "ray/dashboard", "log_monitor")),
    ("Ray worker", ("ray::", "default_worker.py", "setup_worker.py")),
    ("rank", ("forkserver",)),
    ("browser", ("chromium",)),
    (
        "whole run",
        ("start_rlvr", "start_agentic", "start_sft", "start_dpo", "start_rm", "start_distill", "-m roll run"),
    ),
    ("test process", ("pytest", "execnet", "import sys;exec(eval(sys.stdin.readline()))")),
    ("other Python", ("python",)),
)


def read(path: Path = PAGE) -> dict[str, Any]:
    """Everything that is known: {"files": {file: {"gate_s", "slow_s", "fixtures", "starts"}}, "processes": {...}}."""
    return json.loads(path.read_text()) if path.exists() else {"files": {}, "processes": {}}


def seconds(suite: str) -> Callable[[str], float]:
    """Seconds of a file's tests in this suite ("gate" or "slow"): a function from the file's path."""
    files = read()["files"]
    return lambda file: float(files.get(file, {}).get(f"{suite}_s", UNKNOWN_S))


def kind_of(command: str) -> str:
    """The kind of process that has this command line."""
    return next((kind for kind, signs in KINDS if any(sign in command for sign in signs)), "other program")


class Watch(threading.Thread):
    """Reads the CPU seconds of this process and its descendants, again and again."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.known: dict[tuple[int, float], tuple[str, float]] = {}  # (pid, start) -> kind, CPU seconds

    def run(self) -> None:
        while True:
            time.sleep(SAMPLE_S)
            self.look()

    def look(self) -> None:
        process = psutil.Process()
        for each in [process, *process.children(recursive=True)]:
            with suppress(psutil.Error):
                times, key = each.cpu_times(), (each.pid, each.create_time())
                command = " ".join([each.name(), *each.cmdline()])
                self.known[key] = (kind_of(command), times.user + times.system)

    def totals(self) -> dict[str, dict[str, float]]:
        """{kind: {"processes": how many were seen, "cpu_s": their CPU seconds}}, most first."""
        total, number = defaultdict(float), Counter()
        for kind, cpu_s in list(self.known.values()):
            total[kind] += cpu_s
            number[kind] += 1
        order = sorted(total, key=lambda kind: -total[kind])
        return {kind: {"processes": number[kind], "cpu_s": round(total[kind])} for kind in order}


class Recorder:
    """A pytest plugin. In a test process it measures fixtures and starts; where the reports arrive, seconds by file."""

    def __init__(self, name: str) -> None:
        self.name = name  # of this run
        self.file = ""  # of the test that runs now, in a test process
        self.seconds: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))  # file -> suite -> s
        self.fixtures: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
        self.starts: dict[str, Counter[str]] = defaultdict(Counter)
        self.inner = [0.0]  # seconds of the fixtures below the one that is being set up, a number for each level
        self.started = time.monotonic()
        self.saved = self.started
        self.watch: Watch | None = None
        if "PYTEST_XDIST_WORKER" not in os.environ:
            self.watch = Watch()
            self.watch.start()
        sys.addaudithook(self.audit)

    def audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "subprocess.Popen" and self.file:
            name = Path(os.fsdecode(arguments[0] or arguments[1][0])).name
            self.starts[self.file]["interpreters" if name.startswith("python") else "programs"] += 1

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        self.file = item.nodeid.partition("::")[0]
        return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Generator[None, object, object]:
        """What a fixture takes itself, without those that it asks for."""
        began = time.monotonic()
        self.inner.append(0.0)
        try:
            return (yield)
        finally:
            whole, below = time.monotonic() - began, self.inner.pop()
            self.inner[-1] += whole
            self.fixtures[self.file][fixturedef.argname] += whole - below

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        suite = "slow" if "slow" in report.keywords else "gate"
        self.seconds[report.nodeid.partition("::")[0]][suite] += report.duration
        if self.watch is not None and time.monotonic() - self.saved > SAVE_S:  # a run of hours may be cut off
            self.save()

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        mine = (
            {file: dict(of) for file, of in self.fixtures.items()},
            {file: dict(of) for file, of in self.starts.items()},
        )
        if self.watch is None:
            session.config.workeroutput["durations"] = mine  # type: ignore[attr-defined]
            return
        self.save()

    def save(self) -> None:
        assert self.watch is not None
        self.saved = time.monotonic()
        known = read()
        files = known["files"]
        for file, by_suite in self.seconds.items():
            files.setdefault(file, {}).update({f"{suite}_s": round(s, 1) for suite, s in by_suite.items()})
            fixtures = {name: round(s, 1) for name, s in self.fixtures[file].items() if s >= SHORT_S}
            starts = dict(self.starts[file])
            files[file] |= {name: of for name, of in (("fixtures", fixtures), ("starts", starts)) if of}
        known["files"] = {file: files[file] for file in sorted(files) if (REPOSITORY / file).exists()}
        wall_s = round(time.monotonic() - self.started)
        known["processes"][self.name] = {"wall_s": wall_s, "kinds": self.watch.totals()}
        PAGE.write_text(json.dumps(known, indent=1) + "\n")

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        fixtures, starts = getattr(node, "workeroutput", {}).get("durations", ({}, {}))
        for target, source in ((self.fixtures, fixtures), (self.starts, starts)):
            add(target, source)


def add(target: Mapping[str, Any], source: Mapping[str, Mapping[str, float]]) -> None:
    for file, numbers in source.items():
        for name, number in numbers.items():
            target[file][name] += number


def longest_first(files: Iterable[str], seconds_of: Callable[[str], float]) -> list[str]:
    return sorted(files, key=lambda file: (-seconds_of(file), file))
