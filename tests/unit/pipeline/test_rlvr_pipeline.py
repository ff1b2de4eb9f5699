"""What the RLVR pipeline looks at before it starts."""

import numpy as np
import pytest

from roll.errors import ConfigError
from roll.pipeline.rlvr.rlvr_pipeline import check_difficulty
from roll.types.rollout import Task


def task(difficulty: object) -> Task:
    return Task("row-7", "math", np.array([1], np.int32), payload={"difficulty": difficulty})


def test_a_difficulty_on_another_scale_is_refused() -> None:
    check_difficulty([task(0), task(0.5), task(1), task("hard"), task(None)])
    with pytest.raises(ConfigError, match=r"`difficulty` of the data holds 5 \(row-7\), but must be from 0"):
        check_difficulty([task(0.5), task(5)])
