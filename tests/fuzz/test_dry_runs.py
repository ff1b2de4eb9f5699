"""Whatever a configuration holds, a dry run ends with exit code 0 or 2 and its own messages: no traceback, no hang."""

import gc
import random
import sys
from pathlib import Path

import pytest

from roll.commands import run as cli
from tests.fuzz.dry_runs import (
    NAME,
    Case,
    compositions_shared,
    examples,
    fault_of,
    fault_of_dry_run,
    pipeline_of,
    report,
    shrunk,
)

FIRST = 150  # cases that every change must pass
BLOCK = 500
SHARING = 5  # cases that differ in their overrides only


def assert_no_faults(seeds: range, directory: Path) -> None:
    """Runs the cases of all seeds, and shows the first five that failed, as small as they get."""
    found: list[str] = []
    for seed in seeds:
        case = Case.of(seed, SHARING)
        if fault_of(case, directory) is not None:
            small = shrunk(case, directory)
            found.append(report(seed, small, fault_of(small, directory) or ""))
        if len(found) == 5:
            break
    assert not found, "\n\n".join(found)


def test_a_damaged_configuration_works_or_is_refused(tmp_path: Path) -> None:
    with compositions_shared():
        assert_no_faults(range(FIRST), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("block", range(21))
def test_ten_thousand_damaged_configurations_work_or_are_refused(block: int, tmp_path: Path) -> None:
    with compositions_shared():
        assert_no_faults(range(FIRST + block * BLOCK, FIRST + (block + 1) * BLOCK), tmp_path)


@pytest.mark.slow
def test_random_bytes_are_refused(tmp_path: Path) -> None:
    rng = random.Random(0)
    for length in (*range(40), *(rng.randrange(40, 2000) for _ in range(200))):
        data = rng.randbytes(length)
        (tmp_path / f"{NAME}.yaml").write_bytes(data)
        assert fault_of_dry_run("rlvr", tmp_path, NAME, []) is None, data


@pytest.mark.parametrize("example", sorted(examples()))
def test_an_undamaged_example_works(example: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Else the damage would never get past the first check."""
    (tmp_path / f"{NAME}.yaml").write_bytes(Case(example, ()).draft().data)
    words = [f"--config_path={tmp_path}", f"--config_name={NAME}", "--dry_run", "--elsewhere"]
    assert cli.main(pipeline_of(example), words) == 0


class Left:
    """Refers to itself, and to a coroutine that nobody awaits."""

    def __init__(self) -> None:
        async def work() -> None: ...

        self.itself, self.work = self, work()


@pytest.mark.filterwarnings("ignore:coroutine 'Left")
def test_garbage_of_other_tests_is_no_fault_of_a_dry_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def leave(pipeline: str, arguments: list[str]) -> int:
        Left()
        assert len([[] for _ in range(10_000)]) == 10_000  # more than Python lets pile up
        sys.stderr.write("The run cannot start:\n  - seed: no\n")
        return 2

    monkeypatch.setattr(cli, "main", leave)
    assert fault_of_dry_run("rlvr", tmp_path, NAME, []) is None
    gc.collect()


def test_a_case_is_the_same_each_time_it_is_made() -> None:
    first, again = (Case.of(1234, SHARING).draft() for _ in range(2))
    assert (first.data, first.overrides) == (again.data, again.overrides)


def test_a_fault_is_shrunk_to_the_change_that_makes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = next(case for seed in range(1000) if len((case := Case.of(seed)).changes) == 4)
    culprit = case.changes[2]

    def fault(tried: Case, directory: Path) -> str | None:
        return "fault" if culprit in tried.changes else None

    monkeypatch.setattr("tests.fuzz.dry_runs.fault_of", fault)
    assert shrunk(case, tmp_path).changes == (culprit,)
