"""`roll data check` of rows that show pictures."""

import json
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from roll.commands.table import main
from tests.unit.datasets.pictures.files import png


def write(path: Path, *rows: dict[str, Any]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.fixture
def rows(tmp_path: Path) -> list[dict[str, Any]]:
    for name, height, width in (("a", 56, 84), ("b", 56, 56), ("c", 112, 112)):
        (tmp_path / f"{name}.png").write_bytes(png(height, width))
    return [{"prompt": "<image>?", "images": [f"{name}.png"], "ground_truth": "1"} for name in "abc"]


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.helpers.pictures import make_model_dir

    return make_model_dir(tmp_path_factory.mktemp("model"), "qwen2_5_vl")


def test_all_pictures_are_decoded_and_the_broken_ones_named(
    rows: list[dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "d.png").write_bytes(png()[:-30])  # its header can be read
    broken = [{**rows[0], "images": ["b.png", "d.png"], "prompt": "<image><image>"}, {**rows[0], "images": ["e.png"]}]
    file = write(tmp_path / "rows.jsonl", *rows, *broken)
    assert main(["data", "check", file]) == 2
    said = capsys.readouterr()
    assert "  6 in 5 of 5 rows: 2 broken" in said.out and "prompts that an earlier row has too: 0" in said.out
    assert f"{file}:4, column images[1]: {tmp_path}/d.png: " in said.err
    assert f"{file}:5, column images[0]: {tmp_path}/e.png: " in said.err


@pytest.mark.parametrize("kind", ["rlvr", "sft", "dpo"])
def test_tokens_of_pictures_are_those_of_the_model(
    kind: str, rows: list[dict[str, Any]], model_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answers = {"rlvr": {}, "sft": {"answer": "1"}, "dpo": {"chosen": "1", "rejected": "2"}}[kind]
    file = write(tmp_path / "rows.jsonl", *({**row, **answers} for row in rows))
    words = ["prompt_key=prompt", "response_key=answer"] if kind == "sft" else []
    assert main(["data", "check", file, *words, "--for", kind, "--tokenizer", str(model_dir)]) == 0
    shown = capsys.readouterr().out
    assert "  3 in 3 of 3 rows: all can be decoded" in shown
    assert f"  tokens of a picture of {model_dir}: least 4, median 6, most 16" in shown
    assert "columns that are not read" not in shown or "images" not in shown.split("columns that are not read")[1][:60]
    lines = [line.split() for line in shown.split("through the template")[1].splitlines()]
    counts = next(line for line in lines if line[:1] in (["prompt"], ["row"], ["chosen"]))
    assert int(counts[-1]) - int(counts[-4]) == 12  # 16 tokens and 4


def test_pictures_in_parquet_files_are_read_in_their_order(
    rows: list[dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    contents = [png(56, 56, seed) for seed in range(70)]
    contents[40] = b"nothing"
    table = pyarrow.table({"prompt": [f"{number}?" for number in range(70)], "image": contents})
    pyarrow.parquet.write_table(table, tmp_path / "rows.parquet", row_group_size=32)
    assert main(["data", "check", str(tmp_path / "rows.parquet"), "--for", "rlvr"]) == 2
    said = capsys.readouterr()
    assert "  70 in 70 of 70 rows: 1 broken" in said.out
    assert "rows.parquet:41, column image: " in said.err or "rows.parquet:40, column image: " in said.err


def test_a_model_of_text_alone_refuses_them(
    rows: list[dict[str, Any]], tmp_path: Path, tiny_model_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write(tmp_path / "rows.jsonl", *rows)
    assert main(["data", "check", file, "--tokenizer", str(tiny_model_dir)]) == 2
    assert "the run's model does not see pictures" in capsys.readouterr().err
