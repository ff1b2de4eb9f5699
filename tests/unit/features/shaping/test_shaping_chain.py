"""Operators between rollout and training in turn: what they may give, what is saved, and what is said before a run."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from roll.configs.sections.operators import ExperienceOperatorConfig
from roll.distributed.scheduler.rollout_core import StepGroups
from roll.errors import AlgorithmError, ConfigError
from roll.features.shaping.builtins import with_rewards
from roll.features.shaping.chain import Shaping
from roll.features.shaping.checks import experience_problems
from roll.types.rollout import TrajectoryGroup
from tests.helpers.cases import cases
from tests.helpers.configs import config
from tests.helpers.pages import DOCS, importable, snippets, write_files
from tests.unit.features.shaping.groups import group

OWN = "tests.unit.features.shaping.test_shaping_chain"
Groups = Sequence[TrajectoryGroup]


def last_first(groups: Groups, keep: int = 9) -> list[TrajectoryGroup]:
    return list(reversed(groups))[:keep]


def wrong(groups: Groups, kind: str) -> list[Any]:
    first = groups[0]
    match kind:
        case "other":
            return [3]
        case "twice":
            return [first, first]
        case "unknown":
            return [replace(first, group_id=99)]
        case "fewer":
            return [replace(first, trajectories=first.trajectories[:1])]
        case "nan":
            return [with_rewards(first, [float("nan"), 1.0])]
    raise ZeroDivisionError("division by zero")


class Counts:
    def __init__(self, start: int = 0):
        self.seen = start

    def __call__(self, groups: Groups) -> Groups:
        self.seen += len(groups)
        return groups

    def state_dict(self) -> dict[str, Any]:
        return {"seen": self.seen}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.seen = state["seen"]


def experience(*entries: tuple[str, dict[str, Any]]) -> Shaping:
    return Shaping([ExperienceOperatorConfig(name=name, args=args) for name, args in entries])


def step() -> StepGroups:
    return StepGroups([group(2, 1.0, 0.0), group(5, 1.0, 1.0), group(6, 0.0, None)], [group(1, 0.0, 0.0)])


def test_each_sees_what_the_ones_before_left_and_order_stays() -> None:
    groups = step()
    assert Shaping(()).apply(groups) == (groups, {}) and Shaping(()).apply(groups)[0] is groups
    assert not Shaping(()).filters and Shaping(()).state() == []
    shaping = ("reward_shaping", {"op": "multiply", "weight": 2.0})
    made, metrics = experience(shaping, ("std_filter", {}), (f"{OWN}:last_first", {})).apply(step())
    assert [one.group_id for one in made.groups] == [2, 6]  # a group of one reward says nothing and stays
    assert made.groups[0].rewards.tolist() == [2.0, 0.0]
    assert [(one.group_id, one.rewards.tolist()) for one in made.dropped] == [(1, [0.0, 0.0]), (5, [1.0, 1.0])]
    assert metrics == {"rollout/sampled_reward_mean": 3 / 7}  # seven attempts did not fail
    assert not experience(("reward_shaping", {})).filters
    assert experience(("std_filter", {})).filters and experience((f"{OWN}:last_first", {})).filters


@cases("kind, said")
def test_what_code_of_ones_own_gives_is_looked_at(kind: str, said: str) -> None:
    with pytest.raises(AlgorithmError, match=rf"^experience_operators\[0\]: {OWN}:wrong {said}"):
        experience((f"{OWN}:wrong", {"kind": kind})).apply(step())


@pytest.mark.parametrize(
    "name, args, said",
    [
        (f"{OWN}:nothing", {}, "has no nothing"),
        (f"{OWN}:last_first", {"kept": 1}, "cannot be called with the groups of a step and its args: TypeError"),
        (f"{OWN}:Counts", {"begin": 1}, "cannot be called with the groups of a step and its args: TypeError"),
    ],
)
def test_what_cannot_be_called_is_refused_before_the_run(name: str, args: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        experience((name, args))


def test_states_go_on_by_name_and_place(caplog: pytest.LogCaptureFixture) -> None:
    chain = (("reward_shaping", {"scale": "running"}), (f"{OWN}:Counts", {"start": 5}))
    first = experience(*chain)
    first.apply(step())
    saved = first.state()
    assert saved[1] == {"at": "experience_operators[1]", "name": f"{OWN}:Counts", "state": {"seen": 8}}
    second = experience(*chain)
    second.load(saved)
    assert second.state() == saved and not caplog.records
    with caplog.at_level(logging.WARNING):
        other = experience(*reversed(chain))
        other.load(saved)
    assert "experience_operators[0]: " in caplog.text and "starts anew" in caplog.text
    assert other.state()[0]["state"] == {"seen": 5}


def test_moments_of_another_stat_are_not_gone_on_with(caplog: pytest.LogCaptureFixture) -> None:
    """Lengths are around 2, rewards around 0.5: scaled with the moments of lengths they would all be below -1."""
    first = experience(("reward_shaping", {"stat": "response_length", "scale": "running", "op": "subtract"}))
    first.apply(step())
    args = {"stat": "reward", "scale": "running", "op": "replace"}
    second, fresh = experience(("reward_shaping", args)), experience(("reward_shaping", args))
    with caplog.at_level(logging.WARNING):
        second.load(first.state())
    assert "starts anew: the checkpoint has no moments of reward" in caplog.text
    made, expected = (shaping.apply(step())[0].groups for shaping in (second, fresh))
    assert str([each.rewards.tolist() for each in made]) == str([each.rewards.tolist() for each in expected])


def test_code_of_ones_own_that_cannot_go_on_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    shaping = experience((f"{OWN}:Counts", {}))
    saved = [{"at": "experience_operators[0]", "name": f"{OWN}:Counts", "state": {"older": 3}}]
    with pytest.raises(AlgorithmError, match=r"operators\[0\]: .*Counts.load_state_dict raised KeyError"):
        shaping.load(saved)
    monkeypatch.delattr(Counts, "__init__")
    with pytest.raises(AlgorithmError, match=r"operators\[0\]: .*Counts.state_dict raised AttributeError"):
        experience((f"{OWN}:Counts", {})).state()


def found(*entries: dict[str, Any], **changes: Any) -> list[str]:
    made = config({"experience_operators": list(entries), **changes})
    return [problem.text for problem in experience_problems(made)]


def test_a_dry_run_says_what_is_wrong() -> None:
    assert found({"name": "reward_shaping"}, {"name": "own.module:f"}, {"name": "std_filter"}) == []
    (unknown,) = found({"name": "reward_shapin"})
    assert unknown.startswith("experience_operators[0].name: 'reward_shapin' is not of the form")
    assert unknown.endswith("Did you mean reward_shaping?")
    (argument,) = found({"name": "reward_shaping", "args": {"opp": "add"}})
    assert argument.startswith("experience_operators[0].args.opp: unknown key")


def test_the_page_shows_operators_that_work(tmp_path: Path) -> None:
    page = (DOCS / "data.md").read_text(encoding="utf-8")
    shown = page.split("## Operators between rollout and training\n")[1].split("\n\n`experience_operators`")[0]
    entries = yaml.safe_load(shown)["experience_operators"]
    assert found(*entries) == []
    write_files(snippets("data.md", "python"), tmp_path)
    with importable(tmp_path):
        made = Shaping([ExperienceOperatorConfig.model_validate(entry) for entry in entries])
        kept = [one for one in step().groups if one.group_id == 2]
        (one,) = made.apply(StepGroups(kept, []))[0].groups
        assert one.rewards[0] > one.rewards[1] and len(made.state()) == 2
