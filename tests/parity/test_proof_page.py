"""reports/parity.md against the cases that there are, and how it is written."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.parity import proof
from tests.parity.conftest import CASES, FILES
from tests.parity.proof import UNKNOWN, Difference, Differences

ROW = ("1.0e-7 (1e-6)", "-", "-", "-")


def all_cases(config: pytest.Config) -> set[str]:
    """Those of this run, where it collected all files of tests/parity; else another process collects them."""
    here = Path(__file__).parent
    files = {f"tests/parity/{path.relative_to(here).as_posix()}" for path in here.rglob("test_*.py")}
    if files <= config.stash[FILES]:
        return set(config.stash[CASES])
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", "proof", "tests/parity"]
    said = subprocess.run(command, capture_output=True, text=True, check=True, cwd=proof.PAGE.parents[1]).stdout
    return {proof.short(line) for line in said.splitlines() if "::" in line}


def test_the_page_has_a_row_for_every_case_and_no_other(pytestconfig: pytest.Config) -> None:
    cases = all_cases(pytestconfig)
    rows = proof.read(proof.PAGE.read_text(encoding="utf-8"))
    assert len(cases) > 100
    assert rows.keys() == cases, "run `pytest tests/parity --proof -k NAME` for cases that are new"


def test_the_largest_difference_of_several_ranks_is_told_with_its_tolerance() -> None:
    ranks = [Differences(Difference(seen, 1e-6), None, Difference(seen, 0.02), None) for seen in (1.5e-7, 2.25e-12)]
    assert proof.figures(ranks) == ("1.5e-7 (1e-6)", "-", "1.5e-7 (2e-2)", "-")


def test_a_page_keeps_its_text_and_the_rows_that_were_not_run_again() -> None:
    page = proof.write("Text.\n\n", {"a.py::one[x-{'b': 1}]": ROW, "a.py::gone": ROW, "b.py::other": ROW})
    assert proof.read(page) == {"a.py::one[x-{'b': 1}]": ROW, "a.py::gone": ROW, "b.py::other": ROW}
    new = ("2.0e-7 (1e-6)", "-", "-", "-")
    tests = ["a.py::one[x-{'b': 1}]", "a.py::two", "a.py::three"]
    rows = proof.merged(proof.read(page), tests, {"a.py::two": new})
    assert rows == {tests[0]: ROW, "a.py::two": new, "a.py::three": UNKNOWN, "b.py::other": ROW}
    again = proof.write(page, rows)
    assert again.startswith("Text.\n\n| gradients |") and again.count("| gradients |") == 1
    assert proof.read(again) == rows
    assert again.splitlines()[-1].endswith("`a.py::three` |")


@pytest.mark.parametrize("text", ["1.0e-12 (1e-5)", "0.0e+00 (1e-6)"])
def test_figures_are_short(text: str) -> None:
    seen, tolerance = text.split(" ")
    assert str(Difference(float(seen), float(tolerance.strip("()")))) == text.replace("0.0e+00", "0")
