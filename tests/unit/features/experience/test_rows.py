"""A file gives back what it was given, bit for bit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from roll.features.experience.rows import Experience, pack, unpack
from roll.types.media import Picture, PictureSource, Shown
from roll.types.rollout import TrajectoryGroup
from roll.types.texts import Turn
from tests.unit.features.experience.made import experience, row, told


def test_a_group_comes_back_as_it_was() -> None:
    for one in (experience(3, step=5, version=4), experience(0, is_kept=False, size=1), experience(2**40, size=5)):
        assert told(unpack(pack(one))) == told(one)


def test_the_oldest_version_is_that_of_the_weights_that_sampled_first() -> None:
    one = experience(3, version=4)
    younger = TrajectoryGroup(one.group.task, 3, (row(3, 0, 6), row(3, 1, 5)))
    assert one.oldest_version == 4
    assert Experience(0, younger).oldest_version == 5
    nothing = replace(row(3, 0, 6), response_mask=np.zeros(5, np.bool_), policy_versions=np.full(5, -1, np.int32))
    assert Experience(0, TrajectoryGroup(one.group.task, 3, (nothing,))).oldest_version == -1


def test_numbers_that_json_does_not_have_come_back() -> None:
    """A model that has gone astray gives them; what becomes of the run is said by those who look at the values."""
    odd = np.array([0, 0, np.nan, -np.inf, -0.1], np.float32)
    broken = replace(row(3, 0, 1), log_probs=odd, token_rewards=-odd, turn_rewards=odd[2:4], reward=float("inf"))
    one = Experience(0, TrajectoryGroup(experience(3).group.task, 3, (broken, row(3, 1, 1))))
    assert repr(told(unpack(pack(one)))) == repr(told(one))


def test_a_damaged_group_is_never_taken_for_another_one() -> None:
    one = experience(3, size=4)
    content, random = pack(one), np.random.default_rng(0)
    damaged = [content[:end] for end in {0, *random.integers(len(content), size=50).tolist()}]
    for place in random.integers(len(content), size=300):
        flipped = bytearray(content)
        flipped[place] ^= 1 << int(random.integers(8))
        damaged.append(bytes(flipped))
    num_told = 0
    for found in damaged:
        try:
            read = unpack(found)
        except Exception:  # numpy has several
            num_told += 1
        else:
            assert told(read) == told(one)  # of what no value hangs on
    assert num_told > 100


def test_numbers_of_numpy_are_numbers() -> None:
    """A rollout loop of the user's own makes such attempts."""
    half: Any = np.float32(0.5)
    turn = Turn("seen", "said", None, half, {"n": half})
    own = replace(row(3, 0, 1), reward=half, index=np.int64(1), state_key=np.int64(7), turns=(turn,))
    one = Experience(0, TrajectoryGroup(experience(3).group.task, 3, (own,)))
    (found,) = unpack(pack(one)).group.trajectories
    assert (found.reward, found.index, found.state_key) == (0.5, 1, 7)
    assert found.turns == (Turn("seen", "said", None, 0.5, {"n": 0.5}),)


def test_rows_keep_where_their_pictures_are() -> None:
    source = PictureSource("file", "black.png", "rows.jsonl:3, column images[0]")
    black = Picture("black", 28, 56, np.zeros((28, 56, 3), np.uint8), source, (1.0, 0.5))
    shown = replace(row(3, 0, 6), media=(Shown(black, 0, 1),))
    group = TrajectoryGroup(experience(3).group.task, 3, (shown,))
    (found,) = unpack(pack(Experience(0, group))).group.trajectories
    assert found.media == shown.media and found.media[0].picture.pixels is None
    drawn = replace(shown, media=(Shown(replace(black, source=None), 0, 1),))
    with pytest.raises(ValueError, match="has no place from which it could be read again"):
        pack(Experience(0, TrajectoryGroup(experience(3).group.task, 3, (drawn,))))
