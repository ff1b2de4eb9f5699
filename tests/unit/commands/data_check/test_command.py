"""`roll data check`: what a file holds, how it is read, and what is wrong with it."""

import json
from pathlib import Path
from typing import Any

import pytest

from roll.commands.table import main
from roll.configs.sections.data import DataArgs
from roll.datasets.loader import Row
from roll.datasets.rows import Domain, RowReader
from tests.helpers.cases import cases


def write(path: Path, *rows: dict[str, Any]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def check(*words: str) -> int:
    return main(["data", "check", *words])


def test_a_file_of_prompts_is_described(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"prompt": "a b c d e f", "ground_truth": "1", "tag": "math"}, {"prompt": "cd", "tag": "code"}]
    file = write(tmp_path / "rows.jsonl", *rows, {**rows[0], "prompt": "A b  c d e f"}, {**rows[1], "prompt": "x"})
    assert check(file) == 0
    shown = capsys.readouterr().out
    assert f"  {file}: json, 4 rows" in shown
    assert "Read as prompts for RLVR, by the columns of the first row; --for says otherwise" in shown
    assert "  tag: math 2, code 2" in shown
    lines = [line.split() for line in shown.splitlines()]
    assert ["prompt", "str", "all", "rows", "'a", "b", "c", "d", "e", "f'"] in lines
    assert ["ground_truth", "str", "2", "of", "4", "rows", "'1'"] in lines
    assert lines[-1] == ["Every", "one", "of", "4", "rows", "can", "be", "read."]


@pytest.mark.parametrize("row", [{"meta": {"source": "math"}}, {"meta": '{"source": ["math"]}'}])
def test_tags_are_read_as_a_run_reads_them(
    row: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write(tmp_path / "rows.jsonl", {"prompt": "31", **row})
    assert check(file, "tag=meta.source", "--for", "rlvr") == 0
    assert "  meta.source: math 1" in capsys.readouterr().out
    reader = RowReader(DataArgs(file_name=(file,), tag="meta.source"), "k", [Domain("own", ("math",), ())])
    assert reader.read(Row(file, 1, {"prompt": "31", **row})).domain == "own"


def test_rows_that_cannot_be_read_are_told_after_the_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(tmp_path / "rows.jsonl", {"prompt": "a"}, {"question": "b"}, {"question": "c"}, {"prompt": ["d"]})
    assert check(file) == 2
    said = capsys.readouterr()
    assert "Read as prompts" in said.out
    assert f"{file}:2: column 'prompt' (the prompt) is missing; the row has question." in said.err
    assert "(2 of 4 rows)" in said.err and f"{file}:4: " in said.err


def test_conversations_and_pairs_are_known_by_their_columns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    talk = {"messages": [{"role": "user", "content": "31"}, {"role": "assistant", "content": "13"}]}
    assert check(write(tmp_path / "a.jsonl", talk)) == 0
    assert "Read as conversations for supervised fine-tuning" in capsys.readouterr().out
    assert check(write(tmp_path / "b.jsonl", {"q": "31", "a": "13"}), "prompt_key=q", "response_key=a") == 0
    assert "Read as conversations" in capsys.readouterr().out
    assert check(write(tmp_path / "c.jsonl", {"prompt": "31", "chosen": "13", "rejected": "31"})) == 0
    shown = capsys.readouterr().out
    assert "Read as pairs" in shown and "rejected" in shown
    assert check(write(tmp_path / "c.jsonl", {"prompt": "31", "chosen": "13"}), "--for", "dpo") == 2
    assert "column 'rejected' is missing" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("row", "what", "wanted"),
    [
        ({"prompt": "3142", "ground_truth": "1234"}, "prompt", 12),
        ({"instruction": "31", "output": "13"}, "learnt", 3),
        ({"prompt": "31", "chosen": "13", "rejected": "31"}, "chosen", 14),  # with a line end of the template
    ],
)
def test_tokens_are_counted_through_the_template(
    row: dict[str, Any],
    what: str,
    wanted: int,
    tmp_path: Path,
    tiny_model_dir: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = (write(tmp_path / "rows.jsonl", row), "--tokenizer", str(tiny_model_dir), "--max_tokens", "5")
    assert check(*words) == 0
    shown = capsys.readouterr().out
    behind = shown.split("through the template\n")[1].splitlines()
    found = next(line.split() for line in behind if line.split()[0] == what)
    assert found[-4:] == [str(wanted)] * 4
    assert "have more than 5 tokens" in shown


@cases("words, said")
def test_what_cannot_be_meant_is_refused(
    words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "f.jsonl", {"prompt": "a"})
    write(tmp_path / "empty.jsonl")
    assert check(*words) == 2
    assert said in capsys.readouterr().err


def test_options_may_stand_before_columns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(tmp_path / "rows.jsonl", {"instruction": "Sort", "input": "31", "output": "13"})
    assert check(file, "--for", "sft", "query_key=input") == 0
    assert "Sort\n  | 31\n" in capsys.readouterr().out


@cases("row, words, unread")
def test_columns_that_nobody_reads_are_listed(
    row: dict[str, Any],
    words: tuple[str, ...],
    unread: str | None,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert check(write(tmp_path / "rows.jsonl", row), *words) == 0
    lines = [
        line.split(": ")[1] for line in capsys.readouterr().out.splitlines() if "columns that are not read" in line
    ]
    assert lines == ([] if unread is None else [unread])


@cases("row, pieces")
def test_a_row_is_shown_as_the_model_sees_it(
    row: dict[str, Any], pieces: list[str], tmp_path: Path, tiny_model_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write(tmp_path / "rows.jsonl", row)
    assert check(file, "--tokenizer", str(tiny_model_dir)) == 0
    shown = capsys.readouterr().out.split("The row rows.jsonl:1 as the model sees it\n")[1].split("Lengths")[0]
    assert [line.strip() for line in shown.splitlines() if not line.startswith("  |")] == pieces
    assert "  | <|im_start|>user\n  | 31<|im_end|>\n  | <|im_start|>assistant\n" in shown


def test_a_ground_truth_that_no_row_has_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(tmp_path / "rows.jsonl", {"prompt": "31", "reward_model": {"truth": "13"}})
    assert check(file, "ground_truth=reward_model.ground_truth") == 2
    assert "ground_truth=reward_model.ground_truth: no row has it" in capsys.readouterr().err


def test_rows_with_videos_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    part = {"type": "video", "video": "1.mp4"}
    file = write(tmp_path / "rows.jsonl", {"messages": [{"role": "user", "content": [part]}], "ground_truth": "1"})
    assert check(file) == 2
    assert "rows.jsonl:1: column 'messages' shows a video in a message" in capsys.readouterr().err
