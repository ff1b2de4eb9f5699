"""The tools around environments: check_env, the page on adding one, replay, baselines, group filters."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from roll.errors import EnvError
from roll.pipeline.agentic import check_env, replay
from roll.pipeline.agentic.agentic_config import EnvConfig
from roll.pipeline.agentic.baselines import baselines
from roll.pipeline.agentic.group_filters import DropEqualRewards, load_filter
from roll.pipeline.recorder import RecordLimits, RolloutRecord, RolloutRecorder
from roll.types.rollout import Task, TrajectoryGroup, Turn
from tests.unit.agentic.test_rollouter import row

PAGE = Path(__file__).parents[3] / "docs" / "adding_an_env.md"


def test_the_environment_of_the_page_keeps_the_contract(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code = PAGE.read_text(encoding="utf-8").split("```python\n")[1].split("```")[0]
    (tmp_path / "coins.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert check_env.main(["coins:Coins", "swaps=5"]) == 0
    assert "The contract holds." in capsys.readouterr().out
    sys.modules.pop("coins", None)


def test_check_env_names_what_breaks_the_contract(capsys: pytest.CaptureFixture[str]) -> None:
    assert check_env.main(["tests.unit.agentic.broken_env:Broken", "--episodes", "3"]) == 1
    out = capsys.readouterr().out
    for part in (
        "different observations for the same seed",
        "step('') fails: KeyError",
        "an episode earned 2, outside reward_range [0, 1]",
        "both terminated and truncated",
        "reports no success",
    ):
        assert part in out, out


def test_check_env_stops_at_what_keeps_episodes_from_being_played(capsys: pytest.CaptureFixture[str]) -> None:
    assert check_env.main(["tests.unit.agentic.broken_env:Short"]) == 1
    out = capsys.readouterr().out
    assert "step returned 4 values, not (observation, reward, terminated, truncated, metrics)" in out
    assert "1 problem.\n" in out


def test_check_env_says_what_is_not_installed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for module, package in (("gem", "gem-llm"), ("gymnasium", "gymnasium")):
        monkeypatch.setattr(f"roll.pipeline.agentic.env.{module}_env.is_installed", lambda name: False)
        assert check_env.main([module, "env=Some-v0"]) == 2
        assert f"needs the package {package}" in capsys.readouterr().err


def test_check_env_says_that_there_is_no_such_environment(capsys: pytest.CaptureFixture[str]) -> None:
    assert check_env.main(["nowhere.at:All"]) == 2
    assert "importing nowhere.at failed" in capsys.readouterr().err


def test_replay_shows_recorded_episodes_turn_by_turn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    turns = (
        Turn("P_\n_G", "\x1b[2J<answer>Down</answer>", "Down", 0.0, {"success": 0.0}),
        Turn("__\nPG", "hm", None, -0.5),
    )
    records = [
        RolloutRecord("p", "r", -0.5, 4, "Lake", "stop", turns=turns),
        RolloutRecord("p", "", None, 5, "Sea", "failed", extra={"failure": "it broke"}),
    ]
    RolloutRecorder(tmp_path).record(3, records)
    file = tmp_path / "step_000003.jsonl"
    assert replay.main([str(file)]) == 0
    out = capsys.readouterr().out
    assert "Lake, step 3, group 4: reward -0.5" in out
    assert "turn 1: action 'Down', reward +0, in all +0 (success 0)" in out
    assert "sees P_\n     _G\nsays \\x1b[2J<answer>Down</answer>" in out
    assert "turn 2: no action, reward -0.5, in all -0.5" in out
    assert "Sea, step 3, group 5: failed: it broke" in out
    assert replay.main([str(file), "--tag", "Lake"]) == 0
    assert "1 of 2 episodes" in capsys.readouterr().out


def test_replay_ends_quietly_when_its_reader_does(tmp_path: Path) -> None:
    turn = Turn("P_\n_G", "x" * 200_000, "Down", 0.0, {})  # more than a pipe holds
    record = RolloutRecord("p", "r", 1.0, 0, "Lake", "stop", turns=(turn,))
    RolloutRecorder(tmp_path, RecordLimits(num_characters=400_000)).record(0, [record])
    command = [sys.executable, "-m", "roll.pipeline.agentic.replay", str(tmp_path / "step_000000.jsonl")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.read(10)
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 0


def test_replay_refuses_a_file_that_is_no_record(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text(json.dumps({"a": 1}) + "\n")
    assert replay.main([str(tmp_path / "x.jsonl")]) == 2


def test_the_lakes_baselines_are_next_to_nothing_by_chance_and_a_third_blindly() -> None:
    found = baselines(EnvConfig(env_type="frozen_lake", max_steps=8), range(400))
    assert found["random"] < 0.05
    assert 0.25 < found["blind"] < 0.42


def test_groups_of_equal_rewards_are_dropped_by_dotted_path() -> None:
    keep = load_filter("roll.pipeline.agentic.group_filters:DropEqualRewards")
    task = Task("t", "a", np.zeros(0, np.int32))
    same = TrajectoryGroup(task, 0, (row(0), row(1), row(2, float("nan"))))
    apart = TrajectoryGroup(task, 0, (row(0), row(1, 0.0)))
    assert (keep(same), keep(apart)) == (False, True)


@pytest.mark.parametrize("kind", [KeyError, KeyboardInterrupt, SystemExit, BaseException])
def test_a_filter_that_raises_anything_is_named_with_its_cause(
    kind: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    def raises(self: DropEqualRewards, group: TrajectoryGroup) -> bool:
        raise kind("no")

    monkeypatch.setattr(DropEqualRewards, "__call__", raises)
    keep = load_filter("roll.pipeline.agentic.group_filters:DropEqualRewards")
    with pytest.raises(
        EnvError, match=rf"group_filter_cls: .*DropEqualRewards raised {kind.__name__}: .*the group of t"
    ):
        keep(TrajectoryGroup(Task("t", "a", np.zeros(0, np.int32)), 0, (row(0), row(1))))
