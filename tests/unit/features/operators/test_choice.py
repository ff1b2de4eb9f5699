"""The rows that operators leave."""

import json
from pathlib import Path
from typing import Any

import pytest

from roll.configs.sections.data import DataArgs
from roll.datasets.chosen_rows import Places, Texts
from roll.datasets.sources import data_sources
from roll.errors import ConfigError
from roll.features.operators.choice import row_choice
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


def test_operators_leave_rows_in_their_order(files: Path) -> None:
    assert chosen(places(files, "deduplicate", CONTAMINATION)) == ["a b", "a b c"]
    assert chosen(places(files, {"name": "length", "args": {"unit": "tokens", "max": 2}})) == ["a b", "a b"]
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
