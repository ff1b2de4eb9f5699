"""Where the minutes of the tests are: seconds by file.

With `--record-durations` a run writes what it measured to tests/durations.json. The slow tests are divided into shards
by that file, and the order of all tests comes from it. A run of some tests replaces what is known of their files and
leaves the rest.
"""

import json
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
PAGE = REPOSITORY / "tests" / "durations.json"
UNKNOWN_S = 60.0  # what a file counts that was never measured
SAVE_S = 60.0


def read(path: Path = PAGE) -> dict[str, Any]:
    """{"files": {file: {"gate" or "slow": {"s": seconds}}}}."""
    return json.loads(path.read_text()) if path.exists() else {"files": {}}


def seconds(suite: str) -> Callable[[str], float]:
    """Seconds of a file's tests in this suite ("gate" or "slow"): a function from the file's path."""
    files = read()["files"]
    return lambda file: float(files.get(file, {}).get(suite, {}).get("s", UNKNOWN_S))


Key = tuple[str, str]  # file, suite


class Recorder:
    """A pytest plugin: adds up the seconds of each file's tests where their reports arrive, not in xdist's workers."""

    def __init__(self) -> None:
        self.taken: defaultdict[Key, float] = defaultdict(float)
        self.died: set[Key] = set()  # a test process ended in them: what they take is not known
        self.saved = time.monotonic()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when not in ("setup", "call", "teardown"):  # xdist says that the process died
            self.died |= {key_of(report.nodeid, slow) for slow in (False, True)}
            return
        self.taken[key_of(report.nodeid, "slow" in report.keywords)] += report.duration
        if time.monotonic() - self.saved > SAVE_S:  # a run of hours may be cut off
            self.save(PAGE.with_name("durations.part.json"))

    def pytest_sessionfinish(self) -> None:
        self.save(PAGE)
        PAGE.with_name("durations.part.json").unlink(missing_ok=True)

    def save(self, path: Path) -> None:
        """Not over what was read: a test process that is replaced has to put the tests in the same order."""
        self.saved = time.monotonic()
        files = read()["files"]
        for file, suite in self.taken.keys() - self.died:
            if taken_s := self.taken[file, suite]:
                files.setdefault(file, {})[suite] = {"s": round(taken_s, 1)}
        files = {file: files[file] for file in sorted(files) if (REPOSITORY / file).exists()}
        path.write_text(json.dumps({"files": files}, indent=1) + "\n")


def key_of(nodeid: str, is_slow: bool) -> Key:
    return nodeid.partition("::")[0], "slow" if is_slow else "gate"


def longest_first(files: Iterable[str], seconds_of: Callable[[str], float]) -> list[str]:
    return sorted(files, key=lambda file: (-seconds_of(file), file))
