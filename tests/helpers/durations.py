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
from collections.abc import Callable, Generator, Iterable
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
    """{"files": {file: {"gate" or "slow": {"s": seconds, "fixtures": {name: seconds}, "starts": {kind: number}}}},
    "processes": {run: {"wall_s", "kinds"}}}."""
    return json.loads(path.read_text()) if path.exists() else {"files": {}, "processes": {}}


def seconds(suite: str) -> Callable[[str], float]:
    """Seconds of a file's tests in this suite ("gate" or "slow"): a function from the file's path."""
    files = read()["files"]
    return lambda file: float(files.get(file, {}).get(suite, {}).get("s", UNKNOWN_S))


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


class Suite:
    """What the tests of one file in one suite took."""

    def __init__(self) -> None:
        self.s = 0.0
        self.fixtures: defaultdict[str, float] = defaultdict(float)  # seconds
        self.starts: Counter[str] = Counter()

    def shown(self) -> dict[str, Any]:
        fixtures = {name: round(s, 1) for name, s in self.fixtures.items() if s >= SHORT_S}
        rest = {"fixtures": fixtures, "starts": dict(self.starts)}
        return {"s": round(self.s, 1)} | {name: value for name, value in rest.items() if value}


Key = tuple[str, str]  # file, suite


class Recorder:
    """A pytest plugin. In a test process it measures fixtures and starts; where the reports arrive, seconds by file."""

    def __init__(self, name: str, is_worker: bool) -> None:
        """`name`: of this run. `is_worker`: xdist's, whose reports arrive in another process."""
        self.name = name
        self.now: Key = ("", "")  # where the test belongs that runs, in a test process
        self.taken: defaultdict[Key, Suite] = defaultdict(Suite)
        self.died: set[Key] = set()  # a test process ended in them: what they take is not known
        self.inner = [0.0]  # seconds of the fixtures below the one that is being set up, a number for each level
        self.started = self.saved = time.monotonic()
        self.watch: Watch | None = None
        if not is_worker:
            self.watch = Watch()
            self.watch.start()
        sys.addaudithook(self.audit)

    def audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "subprocess.Popen" and self.now[0]:
            name = Path(os.fsdecode(arguments[0] or arguments[1][0])).name
            self.taken[self.now].starts["interpreters" if name.startswith("python") else "programs"] += 1

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        self.now = key_of(item.nodeid, "slow" in item.keywords)
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
            self.taken[self.now].fixtures[fixturedef.argname] += whole - below

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when not in ("setup", "call", "teardown"):  # xdist says that the process died
            self.died |= {key_of(report.nodeid, slow) for slow in (False, True)}
            return
        self.taken[key_of(report.nodeid, "slow" in report.keywords)].s += report.duration
        if self.watch is not None and time.monotonic() - self.saved > SAVE_S:  # a run of hours may be cut off
            self.save(PAGE.with_name("durations.part.json"))

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.watch is None:
            mine = [(key, dict(suite.fixtures), dict(suite.starts)) for key, suite in self.taken.items()]
            session.config.workeroutput["durations"] = mine  # type: ignore[attr-defined]
        else:
            self.save(PAGE)
            PAGE.with_name("durations.part.json").unlink(missing_ok=True)

    def save(self, path: Path) -> None:
        """Not over what was read: a test process that is replaced has to put the tests in the same order."""
        assert self.watch is not None
        self.watch.look()  # a run may be shorter than the time between two looks
        self.saved = time.monotonic()
        known = read()
        files = known["files"]
        for file, suite in self.taken.keys() - self.died:
            if self.taken[file, suite].s:
                files.setdefault(file, {})[suite] = self.taken[file, suite].shown()
        known["files"] = {file: files[file] for file in sorted(files) if (REPOSITORY / file).exists()}
        known["processes"][self.name] = {"wall_s": round(self.saved - self.started), "kinds": self.watch.totals()}
        path.write_text(json.dumps(known, indent=1) + "\n")

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        for (file, suite), fixtures, starts in getattr(node, "workeroutput", {}).get("durations", ()):
            self.taken[file, suite].fixtures.update(fixtures)
            self.taken[file, suite].starts.update(starts)


def key_of(nodeid: str, is_slow: bool) -> Key:
    return nodeid.partition("::")[0], "slow" if is_slow else "gate"


def longest_first(files: Iterable[str], seconds_of: Callable[[str], float]) -> list[str]:
    return sorted(files, key=lambda file: (-seconds_of(file), file))
