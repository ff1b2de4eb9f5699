"""The rows that operators leave, and what a plan says of them."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from roll.configs.problems import Problem
from roll.configs.sections.data import DataArgs
from roll.datasets.chosen_rows import Places, Texts
from roll.datasets.sources import data_sources
from roll.errors import ConfigError
from roll.features.operators.choice import dry_report, row_choice
from roll.types.group_codec import RecordedGroup, write_groups
from tests.unit.features.operators.test_bounds import attempt

TRAIN, VAL = "actor_train.data_args", "validation.data_args"


class Words:
    """A tokenizer of words."""

    def __call__(self, texts: list[str], **_: object) -> dict[str, list[list[int]]]:
        return {"input_ids": [[1] * len(text.split()) for text in texts]}


@pytest.fixture
def files(tmp_path: Path) -> Path:
    write(tmp_path / "train.jsonl", ["a b", "a b", "a b c", "the very same words"])
    write(tmp_path / "val.jsonl", ["x the very same words"])
    return tmp_path


def write(path: Path, prompts: list[str]) -> None:
    path.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in prompts))


def places(folder: Path, *operators: Any) -> Places:
    train = {"file_name": str(folder / "train.jsonl"), "operators": list(operators)}
    made = {TRAIN: DataArgs.model_validate(train), VAL: DataArgs(file_name=(str(folder / "val.jsonl"),))}
    return Places(made, TRAIN)


def chosen(asked: Places) -> list[str]:
    tokenizer: Any = Words()
    choose = row_choice(asked, TRAIN, lambda row, args, key: Texts(str(row.values["prompt"])), tokenizer)
    return [str(row.values["prompt"]) for row in choose(data_sources(asked.data_args[TRAIN], TRAIN)[0])]


CONTAMINATION = {"name": "contamination", "args": {"ngram": 3}}
TOKENS = {"name": "length", "args": {"unit": "tokens", "max": 3}}


def test_operators_leave_rows_in_their_order(files: Path) -> None:
    assert chosen(places(files, "deduplicate", CONTAMINATION)) == ["a b", "a b c"]
    assert len(chosen(places(files))) == 4


def test_a_step_of_recorded_rollouts_that_is_set_aside_counts(files: Path) -> None:
    """Its file has another name, in the same folder."""
    dumps = files / "dumps"
    dumps.mkdir()
    for step, reward in enumerate((1.0, 0.0)):
        groups = [RecordedGroup(row, f"train.jsonl:{row}", (attempt(0, reward),)) for row in range(1, 5)]
        write_groups(dumps / f"step_{step:06d}.npz", groups)
    asked = places(files, {"name": "pass_rate", "args": {"rollouts": str(dumps), "max": 0.5}})
    assert len(chosen(asked)) == 4, "every row is solved once of two times"
    (dumps / "step_000001.npz").rename(dumps / "step_000001.npz.aside")
    with pytest.raises(ConfigError, match="leaves none of 4 rows"):
        chosen(asked)


def found_by(asked: Places) -> list[str | Problem]:
    return list(dry_report(replace(asked, reader=lambda: lambda row, args, key: Texts(str(row.values["prompt"])))))


def reported(asked: Places) -> list[str]:
    return [str(found) for found in found_by(asked)]


def test_a_dry_run_finds_out_what_is_quick(files: Path) -> None:
    asked = places(files, {"name": "length", "args": {"max": 5}}, CONTAMINATION)
    shown = reported(asked)
    assert shown[0] == f"{TRAIN}.operators: length (max 5), contamination (ngram 3)"
    assert [line.split()[:3] for line in shown[2:4]] == [["length", "4", "1"], ["contamination", "3", "0"]]
    assert "user code, models and tokens are used only then" in reported(places(files, TOKENS))[1]


def test_a_dry_run_says_what_will_stop_the_run(files: Path) -> None:
    (line,) = found_by(places(files, {"name": "length", "args": {"min": 500}}))[1:]
    assert isinstance(line, Problem)
    assert line.text.startswith(f"{TRAIN}.operators[0]: length leaves none of 4 rows")
    (files / "val.jsonl").unlink()
    (line,) = reported(places(files, "deduplicate"))[1:]
    assert "not all rows are in files on this machine" in line
