"""The rule by which a step takes its groups, against playing every way that the following steps could go."""

from collections import Counter
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roll.configs.plan.batch_plan import RolloutBounds
from roll.distributed.scheduler.rollout_core import can_take


def test_the_capacity_is_of_the_steps_between_two_publishes_and_those_ahead() -> None:
    assert RolloutBounds(8).capacity == 8
    assert RolloutBounds(8, ahead=4, sync_interval=2, max_staleness=2).capacity == 20


def test_bounds_under_which_a_step_could_wait_for_ever_are_refused() -> None:
    assert RolloutBounds(8, ahead=8, max_staleness=1).capacity == 16
    with pytest.raises(ValueError, match="17 groups would be in flight, but only 16 can be trained on in time"):
        RolloutBounds(8, ahead=9, max_staleness=1)


def test_what_is_left_may_fill_the_steps_before_its_deadline_and_no_more() -> None:
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


@pytest.mark.parametrize("deadlines", [[1, 1, 1], [1, 2, 2, 2, 2]])
def test_the_brute_force_knows_what_does_not_fit(deadlines: list[int]) -> None:
    assert not fits(deadlines, 0, 2) and fits(deadlines[:2], 0, 2)
