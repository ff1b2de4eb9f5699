"""Every test file is in the gate or in one shard of the slow tests, and both fit into their time."""

from collections import Counter
from pathlib import Path

from tests.helpers import durations, suite
from tests.helpers.cases import cases

GATE_LIMIT_S = 30 * 60  # on a machine at half speed: the times that are kept were measured on one
SHARD_LIMIT_S = 60 * 60
PROCESSES = 2  # that run test files side by side


def test_every_test_file_is_in_the_gate_or_in_one_shard() -> None:
    sharded = Counter(file for shard in suite.shards() for file in shard)
    assert [file for file, number in sharded.items() if number > 1] == []
    assert [file for file in suite.test_files() if not suite.has_gate_tests(file) and file not in sharded] == []
    assert [file for file in suite.test_files() if suite.has_slow_tests(file) and file not in sharded] == []


def test_what_was_measured_is_still_there() -> None:
    assert sorted(durations.read()["files"].keys() - set(suite.test_files())) == []


def test_the_gate_and_each_shard_fit_into_their_time_as_measured() -> None:
    """A file that was never measured counts a minute: `make durations` knows better."""
    gate_s = sum(map(durations.seconds("gate"), filter(suite.has_gate_tests, suite.test_files())))
    assert gate_s / PROCESSES < GATE_LIMIT_S, "mark what takes longest slow"
    for shard in suite.shards():
        times = sorted(map(durations.seconds("slow"), shard))
        assert max(sum(times) / PROCESSES, times[-1]) < SHARD_LIMIT_S, "cut the longest file, or make it quicker"


@cases("text, gate")
def test_a_file_is_in_the_gate_if_one_of_its_tests_is(text: str, gate: bool, tmp_path: Path) -> None:
    file = tmp_path / "test_it.py"
    file.write_text(text)
    assert suite.has_gate_tests(str(file)) is gate
