"""What docs/python.md and README.md show of `import roll` runs as it stands, up to the start of engines."""

import json
import runpy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import roll
from roll.api.saved import Rollouts, Table
from tests.helpers.pages import blocks, snippets

ROW = {"step": 1, "rollout/reward_mean": 1.0}
SAMPLE = {"step": 1, "reward": 1.0, "response_text": "2"}


@dataclass
class Pretended:
    """A run of one step that did all it was asked for."""

    metrics: Table = field(default_factory=lambda: Table([ROW]))
    rollouts: tuple[Mapping[str, Any], ...] = (SAMPLE,)
    samples: tuple[Mapping[str, Any], ...] = (SAMPLE,)
    checkpoints: tuple[Path, ...] = ()
    model: Path = Path("hf_model")
    exit_code: int = 0
    calls: list[str] = field(default_factory=list)

    def __iter__(self) -> Iterator[roll.Step]:
        rollouts = Rollouts({}, Path("rollouts"))
        yield from (roll.Step(number, ROW, rollouts) for number in (1, 2))

    def save(self) -> None:
        self.calls.append("save")

    def stop(self) -> None:
        self.calls.append("stop")


@pytest.fixture
def plans(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[roll.Plan]:
    """Of what is started, in a folder with the files of the README."""
    found: list[roll.Plan] = []

    def start(*config: Any, **arguments: Any) -> Pretended:
        found.append(roll.plan(*config, **arguments))
        return Pretended()

    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    Path("train.jsonl").write_text(json.dumps({"prompt": "1 + 1", "ground_truth": "2"}) + "\n")
    Path("my_run.yaml").write_text(*snippets("../README.md", "yaml"))
    Path("short_reward.py").write_text(snippets("../README.md", "python")[0])
    monkeypatch.setattr(roll, "start", start, raising=False)
    monkeypatch.setattr(roll, "train", start, raising=False)
    monkeypatch.setattr(roll, "open", lambda path: Pretended(), raising=False)
    return found


@pytest.mark.parametrize("block", blocks("python.md"), ids=lambda block: block.title)
def test_what_the_page_shows_runs(block: Any, plans: list[roll.Plan], capsys: pytest.CaptureFixture[str]) -> None:
    Path(block.title).write_text(block.text.replace('step.samples[0]["response_text"]', "step.samples"))
    runpy.run_path(block.title, run_name="__main__")
    assert [plan.problems for plan in plans] == ([()] if block.title in ("train.py", "loop.py") else [])
    shown = capsys.readouterr().out
    assert shown
    assert ("The plan works." in shown) == (block.title == "plan.py")


def test_what_the_readme_shows_of_python_runs(plans: list[roll.Plan]) -> None:
    Path("mine.py").write_text(snippets("../README.md", "python")[1].replace('step.samples[0]["response_text"]', "1"))
    runpy.run_path("mine.py", run_name="__main__")
    (plan,) = plans
    assert plan.problems == ()
    assert plan.config is not None and plan.config.max_steps == 20
