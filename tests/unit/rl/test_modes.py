"""What a process that has a part of a run does before its first step."""

from __future__ import annotations

from typing import Any

import pytest

from roll.rl.mode import MODES, RLMode
from roll.run.tracking.local import MetricHistory
from roll.utils.imports import resolve
from tests.helpers.configs import config


def mode(name: str) -> RLMode:
    made: Any = resolve(MODES[name])
    return made(config({}), lambda: False)


@pytest.mark.parametrize(
    ("explores", "steps_done", "measured", "measures"),
    [
        (True, 0, (), True),
        (True, 3, (1, 2), True),  # its groups are there, its row is not: it was killed in between
        (True, 3, (1, 2, 3), False),
        (True, 4, (1, 2, 3), False),  # no evaluation is due
        (False, 0, (), True),
        (False, 3, (), False),  # what a trainer goes on from has its row
    ],
)
def test_an_explorer_makes_up_for_an_evaluation_that_a_kill_cut_off(
    explores: bool, steps_done: int, measured: tuple[int, ...], measures: bool
) -> None:
    history = MetricHistory()
    for step in measured:
        history.append(step, {})
    part, keys = mode("explore" if explores else "both"), config({"eval_steps": 3, "max_steps": 7})
    assert keys.validates_first
    assert part.measures_first(keys, steps_done, history) is measures


def test_each_mode_does_its_part_and_no_other() -> None:
    made = {name: mode(name) for name in MODES}
    assert {name for name, each in made.items() if each.saves} == {"both", "train"}
    assert {name for name, each in made.items() if each.hands_over} == {"explore"}
    for name, each in made.items():
        keys = config({"mode": name}) if name == "both" else each.config.model_copy(update={"mode": name})
        assert each.takes_steps == keys.takes_steps and each.saves == keys.has_training
