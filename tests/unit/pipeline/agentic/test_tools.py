"""The tools around environments: check_env, the page on adding one, replay, group filters."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from roll.commands import check_env
from roll.envs.gymnasium import GymnasiumEnv
from roll.errors import ConfigError, EnvError
from roll.pipeline.agentic.settings import DropEqualRewards, load_filter
from roll.types.rollout import Task, TrajectoryGroup
from tests.helpers.pages import importable, snippets
from tests.unit.pipeline.agentic.test_rollouter import row


def test_the_environment_of_the_page_keeps_the_contract(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = snippets("adding_an_env.md", "python")
    (tmp_path / "coins.py").write_text(code)
    with importable(tmp_path):
        assert check_env.main(["coins:Coins", "swaps=5"]) == 0
    assert "The contract holds." in capsys.readouterr().out


def test_check_env_names_what_breaks_the_contract(capsys: pytest.CaptureFixture[str]) -> None:
    assert check_env.main(["tests.unit.pipeline.agentic.broken_env:Broken", "--episodes", "3"]) == 1
    out = capsys.readouterr().out
    for part in (
        "different observations for the same seed",
        "step('') fails, and every text is a possible action: KeyError",
        "an episode earned 2, outside reward_range [0, 1]",
        "both terminated and truncated",
        "reports no success",
    ):
        assert part in out, out
    assert check_env.main(["tests.unit.pipeline.agentic.broken_env:Generous"]) == 1
    assert "'no such action' as every action wins 100% of the episodes" in capsys.readouterr().out


def test_check_env_stops_at_what_cannot_be_played(capsys: pytest.CaptureFixture[str]) -> None:
    assert check_env.main(["tests.unit.pipeline.agentic.broken_env:Short"]) == 1
    out = capsys.readouterr().out
    assert "step returned 4 values, not (observation, reward, terminated, truncated, metrics)" in out
    assert "1 problem.\n" in out
    assert check_env.main(["tests.unit.pipeline.agentic.broken_env:Silent"]) == 1
    assert "step returned NoneType as observation, not text" in capsys.readouterr().out
    with pytest.raises(ConfigError, match=r"importing nowhere\.at failed"):
        check_env.main(["nowhere.at:All"])


def test_check_env_takes_lists_as_the_command_line_of_a_run_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "taking.py").write_text(
        "class Taking:\n"
        "    def reset(self, seed): ...\n"
        "    def step(self, action): ...\n"
        "    def __init__(self, **given):\n"
        "        raise ValueError(f'{sorted(given.items())}')\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    given = ["actions=[Left,Right]", "kwargs={slippery: false}", "env=game:Guess-v0", "rate=1e-3", "name=x"]
    with pytest.raises(ConfigError) as error:
        check_env.main(["taking:Taking", *given])
    built = "[('actions', ['Left', 'Right']), ('env', 'game:Guess-v0'), ('kwargs', {'slippery': False}), "
    assert built + "('name', 'x'), ('rate', 0.001)]" in str(error.value)
    with pytest.raises(ConfigError, match="'swaps' is not an override. Write key=value"):
        check_env.main(["taking:Taking", "swaps"])
    sys.modules.pop("taking", None)


def test_names_of_actions_are_a_list() -> None:
    with pytest.raises(ValueError, match=r"actions: 'Left, Right' must be a list of names"):
        GymnasiumEnv("FrozenLake-v1", actions="Left, Right")


def test_check_env_says_what_is_not_installed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("roll.envs.gymnasium.is_installed", lambda name: False)
    for name, package in (("gem", "gem-llm"), ("gymnasium", "gymnasium")):
        with pytest.raises(ConfigError, match=f"needs the package {package}"):
            check_env.main([name, "env=Some-v0"])


def test_groups_of_equal_rewards_are_dropped_by_dotted_path() -> None:
    keep = load_filter("roll.pipeline.agentic.settings:DropEqualRewards")
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
    keep = load_filter("roll.pipeline.agentic.settings:DropEqualRewards")
    with pytest.raises(
        EnvError, match=rf"group_filter_cls: .*DropEqualRewards raised {kind.__name__}: .*the group of t"
    ):
        keep(TrajectoryGroup(Task("t", "a", np.zeros(0, np.int32)), 0, (row(0), row(1))))
