"""What is published to engines and to other processes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest

from roll.rl.mode import MODES, RLMode
from roll.rl.publishing import Publisher
from roll.run.tracking.local import MetricHistory
from roll.utils.imports import resolve
from tests.helpers.cases import cases
from tests.helpers.configs import config


class Clusters:
    """Records which states are held, and which versions go to the engines."""

    def __init__(self) -> None:
        self.events: list[object] = []
        self.placement = self
        self.actor_train = SimpleNamespace(weights="train weights")
        self.actor_infer = SimpleNamespace(
            role="actor_infer", weights="weights", everything="engine", waits_for_weights=False
        )

    @contextmanager
    def hold(self, *claims: str) -> Iterator[None]:
        self.events.append(claims)
        yield

    def publish_weights(self, version: int) -> int:
        self.events.append(version)
        return 8


class Scheduler:
    def __init__(self) -> None:
        self.versions: list[int] = []

    def published(self, version: int) -> None:
        self.versions.append(version)


@pytest.mark.parametrize(("frequency", "told"), [(1, [1, 2]), (3, [2])])
def test_new_engines_get_the_newest_weights_and_groups_hear_of_those_that_are_new(
    frequency: int, told: list[int]
) -> None:
    """With frequency 3 the engines had version 0 after two steps of a run ahead."""
    publisher, clusters, scheduler = Publisher(frequency, runs_ahead=True), Clusters(), Scheduler()
    for version in (1, 2):
        publisher.publish(cast(Any, clusters), cast(Any, scheduler), version, is_last=False)
    clusters.events.clear()
    publisher.revive(cast(Any, clusters), cast(Any, scheduler))
    assert clusters.events == [("train weights", "weights"), 2, ("engine",)]
    assert scheduler.versions == told
    assert publisher.engine_version == 2


def mode(name: str) -> RLMode:
    made: Any = resolve(MODES[name])
    return made(config({}), lambda: False)


@cases("explores, steps_done, measured, measures")
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
