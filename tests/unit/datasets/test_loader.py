"""Files to rows, and rows to what they mean."""

import json
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from roll.configs.sections.data import DataArgs
from roll.datasets.loader import Row
from roll.datasets.rows import Domain, RowReader
from roll.datasets.sources import data_sources
from roll.errors import ConfigError
from tests.helpers.cases import cases

KEY = "actor_train.data_args"
ROWS = [
    {"prompt": "1 + 1, or\n2?", "ground_truth": "2", "tag": "math"},
    {"prompt": 'say "ja"', "ground_truth": "jä", "tag": "chat"},
]
MATH = Domain("math", ("math", "gsm8k"))
CHAT = Domain("chat", ("chat",), required=())


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    if path.suffix == ".jsonl":
        path.write_text("\n".join(json.dumps(row) for row in rows) + "\n\n", encoding="utf-8")
    elif path.suffix == ".json":
        path.write_text(json.dumps(rows, indent=1), encoding="utf-8")
    elif path.suffix == ".csv":
        import csv

        with path.open("w", newline="", encoding="utf-8-sig") as stream:
            writer = csv.DictWriter(stream, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    else:
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    return path


def read(args: DataArgs) -> list[dict[str, Any]]:
    files, problems = data_sources(args, KEY)
    assert not problems, problems
    return [dict(row.values) for file in files for row in file.rows()]


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.json", "rows.csv", "rows.parquet"])
def test_every_format_gives_the_same_rows(tmp_path: Path, name: str) -> None:
    assert read(DataArgs(file_name=(str(write(tmp_path / name, ROWS)),))) == ROWS


def test_json_lines_know_their_line_and_files_follow_each_other(tmp_path: Path) -> None:
    names = tuple(str(write(tmp_path / name, ROWS[:1])) for name in ("a.parquet", "b.jsonl", "c.csv"))
    assert read(DataArgs(file_name=names)) == ROWS[:1] * 3
    path = write(tmp_path / "rows.jsonl", ROWS).rename(tmp_path / "rows.json")
    assert read(DataArgs(file_name=(str(path),), dataset_type=("json",))) == ROWS
    path = tmp_path / "rows.jsonl"
    path.write_text('{"a": 1}\n\n{"a": 2}\n', encoding="utf-8")
    (file,), _ = data_sources(DataArgs(file_name=(str(path),)), KEY)
    assert [row.where for row in file.rows()] == [f"{path}:1", f"{path}:3"]


@cases("name, text, message")
def test_a_malformed_file_is_named_with_its_line(tmp_path: Path, name: str, text: str, message: str) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=f"{KEY}.file_name.*{message}"):
        read(DataArgs(file_name=(str(tmp_path / name),)))


def test_text_that_cannot_be_read_is_an_error_with_its_place(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_bytes(b'{"a": "\xff"}\n')
    with pytest.raises(ConfigError, match=r"rows.jsonl is not UTF-8 \(it holds the byte 0xff\); save it as UTF-8"):
        read(DataArgs(file_name=(str(tmp_path / "rows.jsonl"),)))
    (tmp_path / "rows.csv").write_text("a,b,a\n1,2,3\n")
    with pytest.raises(ConfigError, match=r"rows.csv:1: the header names a column twice: a"):
        read(DataArgs(file_name=(str(tmp_path / "rows.csv"),)))


@cases("args, message")
def test_a_file_that_cannot_be_used_gives_one_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, args: dict[str, Any], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    for name in ("rows.txt", "rows.csv"):
        (tmp_path / name).write_text("a\n1\n")
    _, problems = data_sources(DataArgs(**args), KEY)
    assert len(problems) == 1 and problems[0].startswith(KEY)
    with pytest.raises(AssertionError, match=message):
        raise AssertionError(problems[0])


def meaning(row: dict[str, Any], domains: tuple[Domain, ...] = (MATH, CHAT), **args: Any):
    from roll.datasets.loader import Row

    return RowReader(DataArgs(**args), KEY, domains).read(Row("rows.jsonl", 7, row))


def test_tags_choose_the_domain() -> None:
    assert meaning({"prompt": "p", "ground_truth": "1", "tag": "gsm8k"}).domain == "math"
    assert meaning({"prompt": "p", "kind": "chat"}, tag="kind").domain == "chat"
    assert meaning({"prompt": "p", "ground_truth": "1"}, (MATH,)).domain == "math"
    row = {"prompt": "p", "tag": "maths"}
    with pytest.raises(ConfigError, match=f"rewards.chat.tag_included, or set {KEY}.tag: '' if every row is of chat"):
        meaning(row, (CHAT,))
    assert meaning(row, (CHAT,), tag="").domain == "chat"
    with pytest.raises(ConfigError, match="'math' belongs to two domains: rewards.math and rewards.other"):
        RowReader(DataArgs(), KEY, (MATH, Domain("other", ("math",))))


def test_columns_are_taken_as_named_and_must_be_there() -> None:
    messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}]
    row = {"prompt": "p", "question": "q", "messages": messages, "tag": "chat"}
    assert meaning(row).messages == tuple(messages)
    assert meaning(row, prompt="question").text == "q"
    assert meaning({"chat": json.dumps(messages), "tag": "chat"}, messages="chat").messages == tuple(messages)
    assert meaning({**row, "messages": None}).text == "p"
    reader = RowReader(DataArgs(), KEY, (Domain("code", ("code",), ("unit_tests",)),))
    with pytest.raises(
        ConfigError, match=r"r:1: column 'unit_tests' is missing; the row has prompt, tests\. rewards\.code"
    ):
        reader.read(Row("r", 1, {"prompt": "p", "tests": "t"}))
    assert reader.read(Row("r", 1, {"prompt": "p", "unit_tests": ["t"]})).domain == "code"


@cases("row, args, message")
def test_a_row_that_cannot_be_used_says_where_and_what_to_do(
    row: dict[str, Any], args: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=f"rows.jsonl:7: .*{message}"):
        meaning(row, **args)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_ground_truth_that_is_no_number_is_refused(value: float) -> None:
    row = Row("rows.jsonl", 4, {"prompt": "p", "ground_truth": value})
    with pytest.raises(ConfigError, match=r"rows.jsonl:4: column 'ground_truth' holds (nan|inf), which no response"):
        RowReader(DataArgs(), KEY, (MATH,)).read(row)
