"""Files to rows, and rows to what they mean."""

import json
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from roll.configs.data import DataArgs
from roll.datasets.loader import data_files
from roll.datasets.rows import Domain, RowReader
from roll.errors import ConfigError

KEY = "actor_train.data_args"
ROWS = [
    {"prompt": "1 + 1, or\n2?", "ground_truth": "2", "tag": "math"},
    {"prompt": 'say "ja"', "ground_truth": "jä", "tag": "chat"},
]
MATH = Domain("math", ("math", "gsm8k"))
CHAT = Domain("chat", ("chat",), needs_ground_truth=False)


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
    files, problems = data_files(args, KEY)
    assert not problems, problems
    return [dict(row.values) for file in files for row in file.rows()]


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.json", "rows.csv", "rows.parquet"])
def test_every_format_gives_the_same_rows(tmp_path: Path, name: str) -> None:
    assert read(DataArgs(file_name=(str(write(tmp_path / name, ROWS)),))) == ROWS


def test_files_of_several_formats_follow_each_other(tmp_path: Path) -> None:
    names = tuple(str(write(tmp_path / name, ROWS[:1])) for name in ("a.parquet", "b.jsonl", "c.csv"))
    assert read(DataArgs(file_name=names)) == ROWS[:1] * 3


def test_json_lines_may_be_called_json(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.jsonl", ROWS).rename(tmp_path / "rows.json")
    assert read(DataArgs(file_name=(str(path),), dataset_type=("json",))) == ROWS


def test_a_row_knows_its_line(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"a": 1}\n\n{"a": 2}\n', encoding="utf-8")
    (file,), _ = data_files(DataArgs(file_name=(str(path),)), KEY)
    assert [row.where for row in file.rows()] == [f"{path}:1", f"{path}:3"]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("rows.jsonl", '{"a": 1}\n{"a": \n', "rows.jsonl:2: not a JSON object on one line"),
        ("rows.jsonl", '"text"\n', "rows.jsonl:1: a row must be an object of columns, not str"),
        ("rows.json", "[1]", "rows.json:0: a row must be an object of columns, not int"),
        ("rows.csv", "a,b\n1,2\n3\n", "rows.csv:3: does not have the 2 fields of the header"),
        ("rows.csv", "a,b\n1,2,3\n", "rows.csv:2: does not have the 2 fields of the header"),
        ("rows.parquet", "a", "rows.parquet:0: not a parquet file"),
    ],
)
def test_a_malformed_file_is_named_with_its_line(tmp_path: Path, name: str, text: str, message: str) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=f"{KEY}.file_name.*{message}"):
        read(DataArgs(file_name=(str(tmp_path / name),)))


def test_text_that_is_not_utf8_is_an_error_and_not_a_traceback(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_bytes(b'{"a": "\xff"}\n')
    with pytest.raises(ConfigError, match="cannot read .*rows.jsonl as json"):
        read(DataArgs(file_name=(str(tmp_path / "rows.jsonl"),)))


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({}, "file_name is not set"),
        ({"file_name": "nowhere.jsonl"}, r"nowhere.jsonl does not exist \(relative to"),
        ({"file_name": "/nowhere.jsonl"}, r"/nowhere.jsonl does not exist$"),
        ({"file_name": "."}, "is a directory; list the files"),
        ({"file_name": "rows.txt"}, "does not end in .json, .jsonl, .csv, .parquet"),
        ({"file_name": "rows.txt", "dataset_type": "arrow"}, "'arrow' is not one of json, jsonl, csv, parquet"),
        ({"file_name": "rows.csv", "dataset_type": "json"}, "dataset_type says json, but rows.csv ends in .csv"),
        ({"file_name": "rows.csv", "dataset_type": ("csv", "csv")}, "2 entries for 1 files"),
    ],
)
def test_a_file_that_cannot_be_used_gives_one_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, args: dict[str, Any], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("rows.txt", "rows.csv"):
        (tmp_path / name).write_text("a\n1\n")
    _, problems = data_files(DataArgs(**args), KEY)
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


def test_columns_are_taken_as_named_and_messages_before_prompt() -> None:
    messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}]
    row = {"prompt": "p", "question": "q", "messages": messages, "tag": "chat"}
    assert meaning(row).messages == tuple(messages)
    assert meaning(row, prompt="question").text == "q"
    assert meaning({"chat": json.dumps(messages), "tag": "chat"}, messages="chat").messages == tuple(messages)
    assert meaning({**row, "messages": None}).text == "p"


@pytest.mark.parametrize(
    ("row", "args", "message"),
    [
        ({"prompt": "p", "ground_truth": "1", "tag": "maths"}, {}, "no domain has the tag 'maths'.*mean 'math'.*gsm8k"),
        ({"prompt": "p", "ground_truth": "1"}, {}, "column 'tag' .* is missing; the row has prompt, ground_truth"),
        ({"prompt": "p", "tag": "math"}, {}, f"column 'ground_truth' .*missing.*Set {KEY}.ground_truth"),
        ({"prompt": "p", "tag": "math", "ground_truth": ""}, {}, "column 'ground_truth' .*is empty"),
        ({"question": "p", "tag": "chat"}, {}, f"column 'prompt' .*has question, tag. Set {KEY}.prompt"),
        ({"prompt": "", "tag": "chat"}, {}, "column 'prompt' .*is empty"),
        ({"prompt": "p", "tag": "chat"}, {"messages": "messages"}, "column 'messages' .*is missing"),
        ({"prompt": [{"role": "user"}], "tag": "chat"}, {}, f"holds a list; name it as {KEY}.messages: prompt"),
        ({"messages": "hi", "tag": "chat"}, {}, f"not JSON .*set {KEY}.prompt: messages"),
        ({"messages": [{"content": "hi"}], "tag": "chat"}, {}, "must be a list of messages"),
        ({"messages": [{"role": "assistant", "content": "hi"}], "tag": "chat"}, {}, "ends with an assistant"),
    ],
)
def test_a_row_that_cannot_be_used_says_where_and_what_to_do(
    row: dict[str, Any], args: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=f"rows.jsonl:7: .*{message}"):
        meaning(row, **args)


def test_a_tag_of_two_domains_is_an_error() -> None:
    with pytest.raises(ConfigError, match="'math' belongs to two domains: rewards.math and rewards.other"):
        RowReader(DataArgs(), KEY, (MATH, Domain("other", ("math",))))
