import json
import random

import numpy as np
import pytest

from roll.pipeline.driver_state import read_state, restore_rng, rng_state, write_state


@pytest.mark.parametrize(
    "make", [random.Random, np.random.default_rng, lambda s: np.random.Generator(np.random.MT19937(s))]
)
def test_a_generator_restored_from_json_continues_the_sequence(tmp_path, make):
    rng, other = make(7), make(8)
    rng.random()
    if isinstance(rng, random.Random):
        rng.gauss(0, 1)  # leaves a second value behind, which is part of the state
    write_state(tmp_path, {"rng": rng_state(rng)})
    restore_rng(other, read_state(tmp_path)["rng"])
    draw = "gauss" if isinstance(rng, random.Random) else "normal"
    assert [getattr(rng, draw)(0, 1) for _ in range(5)] == [getattr(other, draw)(0, 1) for _ in range(5)]


def test_a_state_of_another_kind_of_generator_is_refused():
    with pytest.raises(ValueError, match="python generator state cannot continue a numpy"):
        restore_rng(np.random.default_rng(0), rng_state(random.Random(0)))


def test_state_is_json_with_numpy_as_numbers_and_the_config_redacted(tmp_path):
    path = write_state(
        tmp_path,
        {
            "step": np.int64(3),
            "cursor": {"math": [1, 2]},
            "best": 0.1 + 0.2,
            "config": {"tracker_kwargs": {"api_key": "k"}},
        },
    )
    assert json.loads(path.read_text()) == read_state(tmp_path)
    assert read_state(tmp_path) == {
        "step": 3,
        "cursor": {"math": [1, 2]},
        "best": 0.1 + 0.2,
        "config": {"tracker_kwargs": {"api_key": "***"}},
    }


def test_what_json_cannot_hold_is_refused(tmp_path):
    with pytest.raises(TypeError, match="got set"):
        write_state(tmp_path, {"seen": {1, 2}})
