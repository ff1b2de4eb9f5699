"""`roll init` writes a YAML that plans."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from roll.commands import init as command
from roll.commands.init import Columns, columns_of
from roll.commands.table import main
from roll.configs.load.chosen_values import Machine
from roll.run.start import machine as machine_module
from tests.helpers.cases import cases

MODEL = "org/model-0.5B"
ROW: dict[str, Any] = {"prompt": "1+1?", "ground_truth": "2"}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "train.jsonl", ROW)
    on_machine(monkeypatch, Machine(packages=frozenset({"deepspeed"})))
    return tmp_path


def on_machine(monkeypatch: pytest.MonkeyPatch, machine: Machine) -> None:
    for module in (command, machine_module):
        monkeypatch.setattr(module, "this_machine", lambda: machine)


def write(path: Path, *rows: dict[str, Any]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def init(*words: str) -> dict[str, Any]:
    assert main(["init", "new.yaml", "--model", MODEL, *words]) == 0
    return yaml.safe_load(Path("new.yaml").read_text())


@cases("words")
def test_what_it_writes_plans_without_a_problem(
    place: Path, words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    init(*words)
    assert capsys.readouterr().out.endswith("The plan works.\n")


@pytest.mark.parametrize("here", [Machine(packages=frozenset({"deepspeed"})), Machine(1, 8e9)])
def test_gpus_that_are_elsewhere_are_planned_for_and_said_not_to_be_checked(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], here: Machine
) -> None:
    on_machine(monkeypatch, here)
    init("--data", "train.jsonl", "--gpus", "8")
    said = capsys.readouterr().out
    assert "Not checked here: GPUs: the run takes 8 of a node" in said
    assert "this machine has no GPU" not in said and "hf_infer" not in said


def test_columns_and_tags_of_the_rows_are_written(place: Path) -> None:
    write(
        place / "q.jsonl", {"question": "a", "answer": "b", "tag": "one"}, {"question": "a", "answer": "b", "tag": "2"}
    )
    made = init("--data", "q.jsonl")
    assert made["actor_train"]["data_args"] == {"file_name": "q.jsonl", "prompt": "question", "ground_truth": "answer"}
    assert made["rewards"] == {"one": {"reward": "math_rule", "tag_included": ["2"]}}


@pytest.mark.parametrize(
    ("row", "found"),
    [
        (ROW, Columns("prompt", "", "ground_truth")),
        ({"messages": [], "solution": "x"}, Columns("", "messages", "solution")),
        ({"prompt": [], "reward_model": {"ground_truth": "x"}}, Columns("", "prompt", "reward_model.ground_truth")),
        ({"problem": "x"}, Columns("problem", "", "")),
    ],
)
def test_usual_names_of_columns_are_known(place: Path, row: dict[str, Any], found: Columns) -> None:
    write(place / "rows.jsonl", row)
    assert columns_of("rows.jsonl") == found


@cases("words, said")
def test_what_cannot_be_is_refused_and_nothing_is_written(
    place: Path, words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write(place / "odd.jsonl", {"a": 1})
    assert main(["init", *words]) == 2
    assert said in capsys.readouterr().err
    assert not list(place.glob("new.*"))


def test_a_file_that_is_there_is_kept(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "new.yaml").write_text("mine: 1\n")
    assert main(["init", "new.yaml", "--model", MODEL, "--data", "train.jsonl"]) == 2
    assert "replace it with --force" in capsys.readouterr().err
    assert (place / "new.yaml").read_text() == "mine: 1\n"


def test_what_is_wrong_with_the_answers_the_plan_says(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", "new.yaml", "--model", MODEL, "--data", "train.jsonl", "--reward", "mathrule"]) == 2
    assert "Did you mean math_rule?" in capsys.readouterr().err and not Path("new.yaml").exists()
    init("--data", "train.jsonl")


def test_a_task_of_reasoning_gym_is_scored_and_validated_as_one(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(place))
    made = init("--data", "reasoning_gym:chain_sum")
    assert made["rewards"] == {"chain_sum": {"reward": "reasoning_gym"}}
    assert "#     file_name: reasoning_gym:chain_sum" in Path("new.yaml").read_text()
