"""What is played before a run starts: sound bounds pass, unsound ones are found, whatever their numbers."""

import itertools

import pytest

from roll.configs.plan.batch_plan import RolloutBounds
from roll.distributed.scheduler.rehearsal import rehearse

SOUND = [
    RolloutBounds(n, ahead, interval, staleness)
    for n, interval, staleness in itertools.product((1, 3), (1, 2, 3), (0, 1, 2, 3))
    if staleness >= interval - 1
    for ahead in sorted({0, 1, (staleness + 1 - interval) * n})
    if ahead <= (staleness + 1 - interval) * n
]


class Unsound(RolloutBounds):
    """Bounds that nobody checks."""

    def __post_init__(self) -> None:
        pass


@pytest.mark.parametrize("bounds", SOUND)
@pytest.mark.parametrize("max_replacements", [0, 2])
def test_no_step_of_sound_bounds_waits_for_ever(bounds: RolloutBounds, max_replacements: int) -> None:
    assert rehearse(bounds, max_replacements) is None
    assert rehearse(bounds, max_replacements, num_steps=1) is None


@pytest.mark.parametrize("n, interval, staleness", itertools.product((1, 2, 5, 100), (1, 2), (0, 1, 2, 3)))
def test_one_group_more_than_is_allowed_is_found(n: int, interval: int, staleness: int) -> None:
    ahead = max(0, (staleness + 1 - interval) * n) + 1
    found = rehearse(Unsound(n, ahead, interval, staleness))
    assert found is not None and "never gets its groups: at " in found and "RolloutCore._until_ready" in found


@pytest.mark.parametrize("ahead, is_sound", [(4096, True), (4097, False)])
def test_many_groups_are_played_in_small_to_the_same_end(ahead: int, is_sound: bool) -> None:
    assert (rehearse(Unsound(4096, ahead, 1, 1), max_replacements=4096) is None) == is_sound
