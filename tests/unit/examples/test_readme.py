"""The run that README.md shows first: its plan works, and its reward scores."""

import json
from pathlib import Path

import pytest

from roll.commands.table import main
from roll.rewards.base import RewardInput
from tests.helpers.pages import importable, snippets


def test_the_run_of_the_readme_can_be_planned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("my_run.yaml").write_text(*snippets("../README.md", "yaml"))
    Path("short_reward.py").write_text(snippets("../README.md", "python")[0])
    Path("train.jsonl").write_text(json.dumps({"prompt": "1 + 1", "ground_truth": "2"}) + "\n")
    with importable(tmp_path):
        assert main(["plan", "my_run.yaml"]) == 0
        from short_reward import short_and_right  # pyright: ignore[reportMissingImports]

        assert short_and_right(RewardInput("1 + 1", "2", "2")) == 1 - 1 / 1000
    shown = capsys.readouterr().out
    assert "4 prompts x 8 samples = 32 = 32 per update" in shown
    assert "x 1 update; 200 updates in the run" in shown
