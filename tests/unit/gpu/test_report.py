"""The table of reports/gpu.md, written from reports; what is written by hand stays."""

from pathlib import Path

import pytest

from tests.gpu.__main__ import FOLDER, PAGE, REPORTS, main
from tests.gpu.check import Check, Limit, Outcome
from tests.gpu.report import BEGIN, END, Report, replace_section, section, store, stored_reports
from tests.gpu.table import CHECKS

LIMITS = {"gap": Limit("", most=1)}
ONE = Check("one", "a path | of weights", "a.py", "", LIMITS)
TWO = Check("two", "another", "b.py", "", LIMITS)
FACTS = {"device": "2 x H100", "driver": "580.1"}


def rows(*reports: Report) -> list[str]:
    return [line for line in section([ONE, TWO], reports).splitlines() if line.startswith("| ")][1:]


def test_the_page_is_what_table_and_reports_make():
    assert rows() == [
        "| a path | of weights | `a.py` | `one` | never run |",
        "| another | `b.py` | `two` | never run |",
    ]
    vllm = Report("cuda", FACTS, [Outcome("one", "passed"), Outcome("two", "skipped", "sglang not installed")])
    sglang = Report("cuda", FACTS, [Outcome("one", "skipped", "vllm not installed"), Outcome("two", "passed")])
    assert [row.rpartition("(")[2] for row in rows(vllm, sglang)] == ["A) |", "B) |"]
    new = section([ONE], [])
    assert replace_section(f"before\n{BEGIN}\nold\n{END}\nafter\n", new) == f"before\n{new}\nafter\n"
    with pytest.raises(ValueError, match="no generated part"):
        replace_section("a page", new)
    # If this fails: `python -m tests.gpu --write-page`.
    page = (FOLDER / PAGE).read_text()
    assert replace_section(page, section(CHECKS, stored_reports(FOLDER / REPORTS))) == page


def test_a_row_tells_figures_failures_and_why_it_was_skipped():
    passed = Outcome("one", "passed", "", {"gap": 0.00321, "other": 5.0}, 12.4)
    failed = Outcome("two", "failed", "gap is 2 | 3,\nmust be at most 1")
    text = section([ONE, TWO], [Report("cuda", FACTS, [passed, failed])])
    assert "- machine A: device 2 x H100, driver 580.1" in text
    assert "| `one` | passed in 12 s: gap 0.00321 (A) |" in text
    assert "| `two` | **failed**: gap is 2 \\| 3, must be at most 1 (A) |" in text
    skipped = Report("cuda", FACTS, [Outcome("one", "skipped", "needs 2 GPUs, there is 1")])
    assert rows(skipped)[0].endswith("| never run: needs 2 GPUs, there is 1 |")


def test_figures_are_judged_by_the_limits_of_now():
    """A limit that was drawn tighter, or wider, since; one whose figure nobody measured then."""
    outcomes = [Outcome("one", "failed", "gap is 0.9, must be at most 0.5", {"gap": 0.9}, 3)]
    outcomes += [Outcome("two", "passed", "", {"gap": 1.2}, 3)]
    first, second = rows(Report("cuda", FACTS, outcomes))
    assert first.endswith("| passed in 3 s: gap 0.9 (A) |")
    assert second.endswith("| **failed**: gap is 1.2, must be at most 1 () (A) |")
    (unmeasured, _) = rows(Report("cuda", FACTS, [Outcome("one", "passed", "", {"other": 1.0}, 3)]))
    assert unmeasured.endswith("| passed in 3 s (did not measure gap yet) (A) |")


def test_a_report_is_read_as_it_was_written(tmp_path: Path):
    report = Report("cpu", FACTS, [Outcome("one", "failed", "why", {"gap": 2.0}, 1.5)])
    report.write(tmp_path / "report.json")
    assert Report.read(tmp_path / "report.json") == report
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(ValueError, match=r"other\.json is no report of this suite"):
        Report.read(tmp_path / "other.json")


def test_reports_are_kept_by_machine_and_a_later_one_of_the_same_versions_adds_to_the_earlier(tmp_path: Path):
    facts = FACTS | {"vllm": "0.32.0"}
    store(Report("cuda", facts, [Outcome("one", "passed"), Outcome("two", "failed", "why")]), tmp_path / "reports")
    store(Report("cuda", FACTS | {"sglang": "0.5.23"}, [Outcome("one", "skipped", "why")]), tmp_path / "reports")
    store(Report("cuda", facts, [Outcome("one", "interrupted"), Outcome("two", "passed")]), tmp_path / "reports")
    assert [path.name for path in sorted((tmp_path / "reports").iterdir())] == [
        "2-x-h100-sglang.json",
        "2-x-h100-vllm.json",
    ]
    _, of_vllm = stored_reports(tmp_path / "reports")
    assert [(outcome.name, outcome.state) for outcome in of_vllm.outcomes] == [("one", "passed"), ("two", "passed")]
    newer = Report("cuda", facts | {"vllm": "0.33.0"}, [Outcome("two", "passed")])
    store(newer, tmp_path / "reports")
    assert newer in stored_reports(tmp_path / "reports")


def test_what_can_run_here_is_listed_with_reasons(capsys: pytest.CaptureFixture[str]):
    assert main(["--device", "cpu", "--gpus", "1", "--list", "--only", "train-megatron-*2", "score-hf"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "train-megatron-tp2: needs 2 GPUs, there is 1",
        "train-megatron-pp2: needs 2 GPUs, there is 1",
        "train-megatron-cp2: needs 2 GPUs, there is 1",
        "score-hf: can run",
    ]
