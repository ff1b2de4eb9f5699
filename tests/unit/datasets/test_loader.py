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


@cases("cell, fault")
@pytest.mark.parametrize("name", ["rows.jsonl", "rows.json"])
def test_what_no_row_may_hold_is_told_with_its_place(tmp_path: Path, name: str, cell: str, fault: str) -> None:
    path, (before, after) = tmp_path / name, ('{"prompt": "p", "ground_truth": 1}',) * 2
    rows = [before, '{"prompt": "p", "ground_truth": 1, "a": ' + cell + "}", after]
    is_array = path.suffix == ".json"
    path.write_text("[" + ", ".join(rows) + "]" if is_array else "\n".join(rows))
    (file,), _ = data_sources(DataArgs(file_name=(str(path),)), KEY)
    reader, faults = RowReader(DataArgs(), KEY, (MATH,)), []
    seen = list(file.rows())
    for row in seen:
        try:
            reader.read(row)
        except ConfigError as error:
            faults.append(str(error))
    assert len(faults) == 1
    assert faults[0].startswith(f"{path}:{1 if is_array else 2}: {fault}")
    assert len(seen) == 3


def test_sound_unicode_and_brackets_in_texts_are_no_faults(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    text = '{"a": "\\ud83d\\ude00 \\u0000 ' + "[{" * 200 + '", "b": ' + "[" * 90 + "]" * 90 + "}"
    path.write_text(text)
    (file,), _ = data_sources(DataArgs(file_name=(str(path),)), KEY)
    (row,) = file.rows()
    assert row.fault == ""
    assert row.values["a"] == "\U0001f600 \0 " + "[{" * 200


@pytest.mark.parametrize("text", ["[]", " [ ]\n", '[{"a": 1}]', '[\n{"a": 1} ,\n {"a": 1}\n]\n'])
def test_arrays_are_read_as_json_has_them(tmp_path: Path, text: str) -> None:
    (tmp_path / "rows.json").write_text(text)
    assert read(DataArgs(file_name=(str(tmp_path / "rows.json"),))) == json.loads(text)


_OPEN = "[" * 100_000  # deeper than Python reads
_LONG = '[{"a": ' + "9" * 5000 + "}]"  # more digits than Python reads


@pytest.mark.parametrize(
    "text",
    ["[", '[{"a": 1}', '[{"a": 1},]', '[{"a": 1} {"a": 1}]', '[,{"a": 1}]', "[] 1", '[{"a": 1}]]', _OPEN, _LONG],
    ids=lambda text: text[:12],
)
def test_arrays_that_are_none_are_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "rows.json").write_text(text)
    with pytest.raises(ConfigError, match=r"rows.json:1: not a JSON array"):
        read(DataArgs(file_name=(str(tmp_path / "rows.json"),)))


@pytest.mark.parametrize("text", [_OPEN, _LONG[1:-1]], ids=["deep", "digits"])
def test_a_line_that_python_cannot_read_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "rows.jsonl").write_text('{"a": 1}\n{"a": ' + text + "}\n")
    with pytest.raises(ConfigError, match=r"rows.jsonl:2: not a JSON object on one line"):
        read(DataArgs(file_name=(str(tmp_path / "rows.jsonl"),)))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_ground_truth_that_is_no_number_is_refused(value: float) -> None:
    row = Row("rows.jsonl", 4, {"prompt": "p", "ground_truth": value})
    with pytest.raises(ConfigError, match=r"rows.jsonl:4: column 'ground_truth' holds (nan|inf), which no response"):
        RowReader(DataArgs(), KEY, (MATH,)).read(row)
