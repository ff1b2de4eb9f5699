"""Whatever a configuration holds, a dry run ends with exit code 0 or 2 and its own messages: no traceback, no hang."""

from pathlib import Path

import pytest

from roll.commands import run as cli
from tests.fuzz.dry_runs import NAME, Case, compositions_shared, examples, fault_of, pipeline_of, report

FIRST = 150  # cases that every change must pass
BLOCK = 500
SHARING = 5  # cases that differ in their overrides only


def assert_no_faults(seeds: range, directory: Path) -> None:
    """Runs the cases of all seeds, and shows the first five that failed."""
    found: list[str] = []
    for seed in seeds:
        case = Case.of(seed, SHARING)
        if (fault := fault_of(case, directory)) is not None:
            found.append(report(seed, case, fault))
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


@pytest.mark.parametrize("example", sorted(examples()))
def test_an_undamaged_example_works(example: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Else the damage would never get past the first check."""
    (tmp_path / f"{NAME}.yaml").write_bytes(Case(example, ()).draft().data)
    words = [f"--config_path={tmp_path}", f"--config_name={NAME}", "--dry_run", "--elsewhere"]
    assert cli.main(pipeline_of(example), words) == 0


def test_a_case_is_the_same_each_time_it_is_made() -> None:
    first, again = (Case.of(1234, SHARING).draft() for _ in range(2))
    assert (first.data, first.overrides) == (again.data, again.overrides)
