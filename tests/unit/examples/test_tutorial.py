"""docs/tutorial.md: its YAML has a plan that works, its reward scores the rows that it makes."""

import json
import runpy
from itertools import pairwise
from pathlib import Path

import pytest
import yaml

from roll.commands.table import main
from roll.rewards.base import RewardInput
from roll.rewards.config import RewardConfig
from roll.rewards.worker import RewardWorker
from tests.helpers.pages import blocks, importable

PAGE, CHINESE = "tutorial.md", "tutorial.zh.md"
REWARD = "largest_first_reward:digits_in_place"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current one, with the page's files and the data that they make."""
    for block in blocks(PAGE):
        if block.title is not None:
            (tmp_path / block.title).write_text(block.text)
    monkeypatch.chdir(tmp_path)
    runpy.run_path("make_data.py")
    return tmp_path


def rows(path: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_both_pages_have_the_files_that_their_commands_name() -> None:
    files = [block.title for block in blocks(PAGE) if block.title is not None]
    commands = " ".join(block.text for block in blocks(PAGE) if block.language == "bash")
    assert files == ["make_data.py", "largest_first_reward.py", "largest_first.yaml"]
    assert [name for name in ("make_data.py", "largest_first.yaml") if name not in commands] == []
    assert {block.language for block in blocks(PAGE) if block.title is None} == {"bash", "text"}

    # The comments of its YAML are in Chinese; all else of a block is the same to the letter.
    def told(page: str) -> list[tuple[str, str | None, object]]:
        texts = [(block.language, block.title, block.text) for block in blocks(page)]
        return [(kind, title, yaml.safe_load(text) if kind == "yaml" else text) for kind, title, text in texts]

    assert told(CHINESE) == told(PAGE)


def test_rows_that_are_measured_are_not_learnt_from(folder: Path) -> None:
    train, test = rows(folder / "train.jsonl"), rows(folder / "test.jsonl")
    assert (len(train), len(test)) == (4000, 200)
    assert {row["prompt"] for row in train}.isdisjoint(row["prompt"] for row in test)


def test_the_plan_of_the_page_works_and_shows_what_the_page_says(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", "largest_first.yaml"]) == 0, capsys.readouterr().err
    shown = capsys.readouterr().out.splitlines()
    page = blocks(PAGE)
    (said,) = [after for before, after in pairwise(page) if before.text.startswith("roll plan")]
    assert said.language == "text" and [line for line in said.text.splitlines() if line not in shown] == []


def test_the_reward_of_the_page_scores_its_rows(folder: Path) -> None:
    with importable(folder):
        worker = RewardWorker("digits", RewardConfig(reward=REWARD))
        tested = list(rows(folder / "test.jsonl"))
        assert tested
        for row in tested:
            truth = row["ground_truth"]
            answers = [f"<answer>{text}</answer>" for text in (truth, truth[:2], truth + truth, "")] + [truth]
            scored = worker.score([RewardInput(row["prompt"], answer, truth) for answer in answers])
            assert [result and result.score for result in scored] == [1.0, 0.5, 0.5, 0.0, 0.0]
            assert [result and result.metrics["right"] for result in scored] == [1, 0, 0, 0, 0]
