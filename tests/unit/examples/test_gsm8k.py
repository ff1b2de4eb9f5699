"""The GSM8K preparation script keeps the final number and refuses what is not GSM8K."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[3] / "examples" / "qwen2.5-0.5B-gsm8k" / "prepare.py"


def prepare(source: Path, out: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(SCRIPT), str(source), "--out", str(out)], capture_output=True, text=True)


def test_final_number_becomes_the_ground_truth_without_commas(tmp_path: Path) -> None:
    answers = ["Half of it.\n#### 72", "<<3*4=12>>#### -1,234,567", "Cents.\n#### 0.5 ", "So #### 3 is not it\n#### 18"]
    source = tmp_path / "train.jsonl"
    source.write_text("".join(json.dumps({"question": " How many? ", "answer": answer}) + "\n" for answer in answers))
    assert prepare(source, tmp_path / "out").returncode == 0
    rows = [json.loads(line) for line in (tmp_path / "out" / "train.jsonl").read_text().splitlines()]
    assert [row["ground_truth"] for row in rows] == ["72", "-1234567", "0.5", "18"]
    assert {row["tag"] for row in rows} == {"gsm8k"}
    assert rows[0]["prompt"].startswith("How many?\n")
    assert "Half of it" not in rows[0]["prompt"]


@pytest.mark.parametrize(
    "line, complaint",
    [
        ('{"question": "q", "answer": "no number"}', "does not end in"),
        ('{"question": "q"}', "`question` and `answer`"),
        ("not json", "not JSON"),
        ("", "no rows"),
    ],
)
def test_bad_line_is_named_and_nothing_is_written(tmp_path: Path, line: str, complaint: str) -> None:
    source = tmp_path / "test.jsonl"
    source.write_text(line + "\n")
    result = prepare(source, tmp_path / "out")
    assert result.returncode == 2
    assert complaint in result.stderr
    assert str(source) in result.stderr
    assert not (tmp_path / "out").exists()


def test_source_is_never_overwritten(tmp_path: Path) -> None:
    source = tmp_path / "train.jsonl"
    source.write_text(json.dumps({"question": "q", "answer": "#### 1"}) + "\n")
    before = source.read_text()
    assert prepare(source, tmp_path).returncode == 2
    assert source.read_text() == before
