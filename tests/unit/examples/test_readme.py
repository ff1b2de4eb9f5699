"""The runs that README.md and the pages on agents show first: their plans work, and the reward scores."""

import json
import re
from pathlib import Path
from textwrap import dedent

import pytest
import yaml

from roll.commands.table import main
from roll.rewards.base import RewardInput
from tests.helpers.pages import DOCS, importable, snippets


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


@pytest.mark.parametrize(("page", "number"), [("agents", 0), ("agent_tools", 0), ("other_environments", 0)])
def test_the_environments_of_the_pages_on_agents_can_be_planned(
    page: str, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KEY", "k")
    blocks = re.findall(r"(?:^    .*\n)+", (DOCS / f"{page}.md").read_text(encoding="utf-8"), re.MULTILINE)
    shown = yaml.safe_load(dedent([block for block in blocks if "custom_envs:" in block][number]))
    groups = {"num_env_groups": 16, "group_size": 8, "tags": list(shown["custom_envs"])}
    Path("run.yaml").write_text(yaml.safe_dump({"pretrain": "model", "train_env_manager": groups} | shown))
    Path("my_agent.py").write_text("async def play(task, session): ...\n")
    Path("my_reward.py").write_text("def score(task, messages): ...\n")
    with importable(tmp_path):
        assert main(["plan", "run.yaml", "--elsewhere"]) == 0, capsys.readouterr().err
