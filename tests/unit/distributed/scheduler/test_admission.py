"""What the scheduler admits, numbers and corrects."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from roll.configs.plan.batch_plan import RolloutBounds
from roll.distributed.scheduler.filters import length_bias
from roll.distributed.scheduler.numbered_tasks import EVERY, NumberedTasks
from roll.distributed.scheduler.rollout_core import can_take
from roll.types.rollout import Generation, Task, Trajectory, TrajectoryGroup


def test_bounds_admit_what_steps_can_take_before_their_deadlines() -> None:
    assert RolloutBounds(8).capacity == 8
    assert RolloutBounds(8, ahead=4, sync_interval=2, max_staleness=2).capacity == 20
    assert RolloutBounds(8, ahead=8, max_staleness=1).capacity == 16
    with pytest.raises(ValueError, match="17 groups would be in flight, but only 16 can be trained on in time"):
        RolloutBounds(8, ahead=9, max_staleness=1)
    assert can_take({4: 2}, {4: 4}, step=3, num_groups=2)
    assert not can_take({4: 2}, {4: 5}, step=3, num_groups=2)
    assert not can_take({4: 1}, {4: 1}, step=3, num_groups=2)  # too few are finished
    assert not can_take({4: 2}, {3: 1, 4: 2}, step=3, num_groups=2)  # one that has to come now still runs


def fits(deadlines: list[int], step: int, num_groups: int) -> bool:
    """True if some order of taking all groups, `num_groups` a step from `step + 1` on, meets every deadline."""
    latest = max(deadlines, default=step)
    for later in product(range(step + 1, latest + 1), repeat=len(deadlines)):
        in_time = all(taken <= deadline for taken, deadline in zip(later, deadlines, strict=True))
        if in_time and max(Counter(later).values(), default=0) <= num_groups:
            return True
    return not deadlines


@given(st.integers(1, 3), st.lists(st.tuples(st.integers(0, 2), st.booleans()), max_size=6))
def test_a_step_takes_the_oldest_finished_groups_if_the_others_can_all_come_in_time(
    num_groups: int, groups: list[tuple[int, bool]]
) -> None:
    groups.sort(key=lambda group: group[0])
    finished = [i for i, (_, is_finished) in enumerate(groups) if is_finished]
    taken = set(finished[:num_groups])
    left = [deadline for i, (deadline, _) in enumerate(groups) if i not in taken]
    expected = len(taken) == num_groups and fits(left, 0, num_groups)
    found = can_take(Counter(groups[i][0] for i in finished), Counter(d for d, _ in groups), 0, num_groups)
    assert found == expected


PROMPT = np.array([1], np.int32)


def group(*lengths: int, cut: tuple[int, ...] = ()) -> TrajectoryGroup:
    def row(index: int, length: int) -> Trajectory:
        answer = Generation(
            np.full(length, 5, np.int32), np.zeros(length, np.float32), np.zeros(length, np.int32), "stop"
        )
        failure = "generation was aborted" if index in cut else None
        return Trajectory.from_generation(PROMPT, answer, 1.0, index=index, response_text="", failure=failure)

    return TrajectoryGroup(Task("t", "math", PROMPT), 0, tuple(row(*numbered) for numbered in enumerate(lengths)))


def test_the_bias_is_one_where_all_is_trained_on_and_below_where_the_long_ones_are_missing() -> None:
    short, long = group(10, 20), group(30, 60)
    assert length_bias([short, long], [short, long]) == 1.0
    assert length_bias([short, long], [short]) == 15 / 30
    assert length_bias([group(10, 20, cut=(1,))], [group(10, 20, cut=(1,))]) == 10 / 15
    assert length_bias([short], [short], [(30, True)]) == 15 / 20
    assert length_bias([short], [short], [(5, False), (30, True)]) == 15 / 16.25
    assert length_bias([short], []) is None
    assert length_bias([group(0, 0)], [group(0, 0)]) is None


class Squares:
    """Tasks 0, 1, 4, 9, ..."""

    def __init__(self, position: int = 0):
        self.position = position

    def next_tasks(self, count: int) -> list[Task]:
        first, self.position = self.position, self.position + count
        return [Task(str(i * i), "d", np.zeros(1, np.int32)) for i in range(first, first + count)]

    def state_dict(self) -> dict[str, Any]:
        return {"position": self.position}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.position = state["position"]


@given(st.integers(1, 400), st.sets(st.integers(0, 399), max_size=8))
def test_older_numbers_come_again_after_a_resume(upto: int, numbers: set[int]) -> None:
    tasks = NumberedTasks(Squares())
    for number in range(upto):
        assert tasks.draw(number).task_id == str(number * number)
    numbers = {number for number in numbers if number < upto}
    place, state = tasks.place(min(numbers, default=upto))
    assert state == {"position": place} and (place % EVERY == 0 or not numbers)
    resumed = NumberedTasks(Squares(place))
    resumed.restore(place, numbers, upto)
    for number in (*sorted(numbers), upto):
        assert resumed.draw(number).task_id == str(number * number)
    assert resumed.place(upto + 1)[0] == upto + 1


def test_a_number_that_nobody_announced_is_refused() -> None:
    tasks = NumberedTasks(Squares())
    tasks.draw(0)
    with pytest.raises(KeyError, match="task 5 is not the next one, 1"):
        tasks.draw(5)
