import json

import numpy as np
import pytest

from roll.errors import ConfigError
from roll.run.saving.checkpoint import DriverState, read_state, write_state


def test_state_is_json_with_numpy_as_numbers_and_the_config_redacted(tmp_path):
    run = {"tokens": np.int64(3), "cursor": {"math": [1, 2]}, "best": 0.1 + 0.2}
    path = write_state(
        tmp_path, DriverState(steps_done=3, run=run, config={"tracker_kwargs": {"api_key": "k"}, "seed": 1})
    )
    assert json.loads(path.read_text()) == {
        "steps_done": 3,
        "run": {"tokens": 3, "cursor": {"math": [1, 2]}, "best": 0.1 + 0.2},
        "config": {"tracker_kwargs": {"api_key": "***"}, "seed": 1},
    }
    assert read_state(tmp_path).model_dump() == json.loads(path.read_text())


def test_what_json_cannot_hold_is_refused(tmp_path):
    with pytest.raises(TypeError, match="got set"):
        write_state(tmp_path, DriverState(steps_done=1, run={"seen": {1, 2}}))


GOOD = '{"steps_done": 3, "run": {}, "config": {}}'


@pytest.mark.parametrize(
    "text, said",
    [
        ("[1]", "it holds list, not an object"),
        ("null", "it holds NoneType, not an object"),
        ("{", "Expecting property name"),
        ("[" * 100_000, "nested too deeply"),
        ('{"steps_done": ' + "9" * 5000 + "}", "Exceeds the limit"),
        ("\udcff", "invalid start byte"),
        (GOOD.replace("3", '"3"'), "steps_done: Input should be a valid integer"),
        (GOOD.replace("3", "-3"), "steps_done: Input should be greater than or equal to 0"),
        (GOOD.replace("{}", "[]", 1), "run: Input should be a valid dictionary"),
        ('{"steps_done": 3}', "run: Field required"),
    ],
    ids=lambda text: text[:30],
)
def test_a_state_of_another_shape_is_damaged(tmp_path, text, said):
    (tmp_path / "driver_state.json").write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(ConfigError, match="driver_state.json cannot be read, so the checkpoint is damaged: .*" + said):
        read_state(tmp_path)
