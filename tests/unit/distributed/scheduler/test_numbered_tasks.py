"""Tasks by number, again after a resume, from a stream that only goes forward."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from roll.distributed.scheduler.numbered_tasks import EVERY, NumberedTasks
from roll.types.rollout import Task


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
