"""What a step trains on: the groups of its number, each once, none too old, whatever comes late."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from roll.configs.sections.experience import ExperienceConfig
from roll.errors import ConfigError, StorageError
from roll.features.experience.directory import DirectoryBuffer
from roll.features.experience.reader import ExperienceReader, Reading, Reuse, Taken
from roll.run.interrupts import StepAbandoned
from tests.unit.features.experience.made import experience


@dataclass
class World:
    """A buffer, and a clock that goes on only while the reader waits; what happens meanwhile is told by second."""

    buffer: DirectoryBuffer
    later: dict[int, Callable[[], object]] = field(default_factory=dict)
    now: float = 0.0
    is_stopped: bool = False

    def wait(self, seconds: float) -> None:
        before, self.now = int(self.now), self.now + seconds
        for second in range(before + 1, int(self.now) + 1):
            self.later.pop(second, lambda: None)()
        assert self.now < 10_000, "it waits for ever"

    def reader(self, staleness: int = 0, num_groups: int = 2, **keys: Any) -> ExperienceReader:
        made = ExperienceConfig.model_validate({"read_timeout_s": 0.0, **keys})
        reuse = Reuse(made.reuse, 0) if made.reuse.enable else None
        reading = Reading(made, num_groups, staleness)
        return ExperienceReader(self.buffer, reading, reuse, lambda: self.is_stopped, lambda: self.now, self.wait)

    def explore(self, step: int, numbers: list[int], version: int | None = None, dropped: tuple[int, ...] = ()) -> None:
        version = step if version is None else version
        self.buffer.write([experience(n, step, version, n not in dropped) for n in numbers])
        self.buffer.finish(step, numbers)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(DirectoryBuffer(tmp_path))


def numbers(taken: Taken) -> list[int]:
    return [group.group_id for group in taken.groups.groups]


def test_a_step_waits_for_all_groups_of_its_number(world: World) -> None:
    world.buffer.write([experience(0)])
    world.later = {3: lambda: world.explore(0, [0, 1])}
    taken = world.reader().take(0)
    assert numbers(taken) == [0, 1] and world.now >= 3
    assert set(taken.metrics().values()) == {0.0}


def test_groups_of_later_steps_stay(world: World) -> None:
    world.explore(0, [0, 1])
    world.explore(1, [2, 3], version=0)
    reader = world.reader(staleness=1)
    assert [numbers(reader.take(step)) for step in (0, 1)] == [[0, 1], [2, 3]]


def test_the_step_for_which_a_group_was_sampled_comes_before_its_number(world: World) -> None:
    world.explore(0, [0, 3])
    world.explore(1, [1, 2])
    reader = world.reader()
    assert [numbers(reader.take(step)) for step in (0, 1)] == [[0, 3], [1, 2]]


def test_dropped_groups_are_told_and_not_trained_on(world: World) -> None:
    world.explore(0, [0, 1, 2], dropped=(1,))
    reader = world.reader()
    taken = reader.take(0)
    assert numbers(taken) == [0, 2]
    assert [group.group_id for group in taken.groups.dropped] == [1]
    reader.saved(1)
    assert world.buffer.entries() == []


def test_partial_trains_on_what_is_there_and_late_groups_follow_as_long_as_they_are_young(world: World) -> None:
    world.buffer.write([experience(0)])
    reader = world.reader(staleness=1, num_groups=3, read_timeout_s=5.0, on_timeout="partial")
    taken = reader.take(0)
    assert (numbers(taken), taken.missing, world.now >= 5) == ([0], 2, True)
    world.explore(0, [0, 1, 2])
    world.explore(1, [3, 4, 5])
    taken = reader.take(1)
    assert (numbers(taken), taken.late) == ([1, 2, 3], 2)
    world.explore(2, [6, 7, 8])
    taken = reader.take(2)
    assert (numbers(taken), taken.late, taken.stale) == ([4, 5, 6], 2, 0)


def test_late_groups_that_are_too_old_are_told_and_never_trained_on(world: World) -> None:
    world.buffer.write([experience(0)])
    reader = world.reader(staleness=0, read_timeout_s=5.0, on_timeout="partial")
    assert numbers(reader.take(0)) == [0]
    world.explore(0, [0, 1])
    world.explore(1, [2, 3])
    taken = reader.take(1)
    assert (numbers(taken), taken.stale) == ([2, 3], 1)
    assert taken.metrics()["rollout/stale_groups"] == 1.0
    reader.saved(2)
    assert world.buffer.entries() == []


def test_fail_ends_the_run_and_wait_goes_on(world: World) -> None:
    world.buffer.write([experience(0)])
    with pytest.raises(StorageError, match="step 1: 1 of 2 groups are there after 5 s"):
        world.reader(read_timeout_s=5.0, on_timeout="fail").take(0)
    world.later = {40: lambda: world.explore(0, [0, 1])}
    assert numbers(world.reader(read_timeout_s=5.0).take(0)) == [0, 1]


def test_a_signal_ends_the_waiting(world: World) -> None:
    world.later = {2: lambda: setattr(world, "is_stopped", True)}
    with pytest.raises(StepAbandoned):
        world.reader().take(0)


def test_an_older_checkpoint_is_refused_when_the_groups_after_it_are_gone(world: World) -> None:
    for step in range(2):
        world.explore(step, [2 * step, 2 * step + 1])
    reader = world.reader()
    reader.take(0)
    old = reader.state()
    reader.take(1)
    reader.saved(2)
    with pytest.raises(ConfigError, match="2 groups that .* are gone .* such as 2"):
        world.reader().restore(old, 1)
    with pytest.raises(ConfigError, match="4 groups"):
        world.reader().restore({}, 0)


REUSE = {"enable": True, "cooldown_s": 10.0, "decay": 1.0}


def test_groups_come_back_after_their_rest_the_newest_and_least_used_first(world: World) -> None:
    reader = world.reader(staleness=3, reuse=REUSE)
    world.explore(0, [0, 1])
    assert numbers(reader.take(0)) == [0, 1]
    world.buffer.write([experience(2, step=1, version=1)])
    taken = reader.take(1)
    assert world.now >= 10, "one fresh group and two that rest: nobody waits longer than they do"
    assert (numbers(taken), taken.reused) == ([0, 2], 1)
    assert {row[0]: row[3] for row in reader.state()["taken"]} == {0: 2, 1: 1, 2: 1}


def test_a_group_that_came_back_is_released_when_it_is_used_up_or_too_old(world: World) -> None:
    keys = {**REUSE, "cooldown_s": 0.0, "priority": "decay_limit_randomization", "use_limit": 2}
    reader = world.reader(staleness=2, num_groups=1, reuse=keys)
    world.explore(0, [0])
    assert numbers(reader.take(0)) == [0]
    reader.saved(1)
    assert [entry.number for entry in world.buffer.entries()] == [0]
    again = world.reader(staleness=2, num_groups=1, reuse=keys)
    again.restore(reader.state(), 1)
    taken = again.take(1)
    assert (numbers(taken), taken.reused) == ([0], 1)
    again.saved(2)
    assert world.buffer.entries() == [], "it was trained on twice"

    world.explore(1, [1], version=1)
    world.explore(2, [2], version=2)
    once = world.reader(staleness=1, num_groups=1, reuse={**keys, "use_limit": 0})
    assert numbers(once.take(2)) == [2]
    once.saved(5)
    assert [entry.number for entry in world.buffer.entries()] == [1], "version 2 is too old for step 5"


def test_going_back_to_where_a_released_group_was_still_in_use_is_refused(world: World) -> None:
    """Group 0 is trained on in step 0, is too old after step 2 and goes; the checkpoint after step 1 counts on it."""
    keys = {"reuse": {"enable": True, "decay": 100.0}}
    reader = world.reader(staleness=1, num_groups=1, **keys)
    states = []
    for step in range(3):
        world.explore(step, [step])
        reader.take(step)
        states.append(reader.state())
    reader.saved(3)
    with pytest.raises(ConfigError, match="such as 0: a later checkpoint was saved"):
        world.reader(staleness=1, num_groups=1, **keys).restore(states[0], 1)
    world.reader(staleness=1, num_groups=1, **keys).restore(states[2], 3)
