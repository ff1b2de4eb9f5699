"""Rows by a number: lengths, pass rates."""

from pathlib import Path

import numpy as np
import pytest

from roll.configs.sections.operators import LengthArgs, PassRateArgs
from roll.errors import ConfigError
from roll.features.operators.bounds import length, pass_rate, rates_of
from roll.types.group_codec import RecordedGroup, write_groups
from roll.types.rollout import Trajectory
from tests.unit.features.operators.rows import context, rows


def test_lengths_and_pass_rates_have_bounds() -> None:
    both = rows({"prompt": "a bb", "answers": ["c", "d e f"]}, {"prompt": "abc", "answers": ["a", "b"]})
    assert length(both, LengthArgs(max=3), context()) == ["more than 3 characters", None]
    assert length(both, LengthArgs(unit="tokens", min=2), context()) == [None, "fewer than 2 tokens"]
    assert length(both, LengthArgs(part="response", max=4), context()) == ["more than 4 characters", None]
    assert length(both, LengthArgs(part="response", min=2), context())[0] == "fewer than 2 characters"
    assert length(both, LengthArgs(part="both", unit="tokens", max=4), context()) == ["more than 4 tokens", None]
    assert length(rows("abc"), LengthArgs(part="both", min=4), context()) == ["fewer than 4 characters"]
    some = rows(*({"prompt": "p", "pass_rate": rate} for rate in (0.0, 0.125, 0.5, 1.0, "0.25")))
    found = pass_rate(some, PassRateArgs(min=0.125, max=0.875), context())
    assert found == ["pass rate below 0.125", None, None, "pass rate above 0.875", None]
    some = rows({"prompt": "p", "pass_rate": None}, {"prompt": "p", "pass_rate": float("nan")}, "p")
    with pytest.raises(ConfigError, match=r"x.operators\[0\]: f.jsonl:0 has no pass rate: column 'pass_rate' gives"):
        pass_rate(some, PassRateArgs(), context())
    assert pass_rate(some, PassRateArgs(missing="keep"), context()) == [None] * 3
    assert pass_rate(some, PassRateArgs(missing="drop"), context()) == ["no pass rate"] * 3


def attempt(index: int, reward: float, failure: str | None = None) -> Trajectory:
    return Trajectory(
        reward=reward,
        finish_reason="failed" if failure else "stop",
        index=index,
        failure=failure,
        input_ids=np.array([1, 2], np.int32),
        response_mask=np.array([False, True]),
        log_probs=np.zeros(2, np.float32),
        policy_versions=np.array([-1, 0], np.int32),
    )


def test_pass_rates_come_from_recorded_rollouts_by_the_id_of_the_row(tmp_path: Path) -> None:
    groups = [
        RecordedGroup(0, "r0", tuple(attempt(i, reward) for i, reward in enumerate((1.0, 0.0, 0.5)))),
        RecordedGroup(1, "r1", (attempt(0, 0.0), attempt(1, float("nan"), "broken"))),
        RecordedGroup(2, "r2", (attempt(0, float("nan"), "broken"),)),
    ]
    write_groups(tmp_path / "step_000001.npz", groups)
    write_groups(tmp_path / "step_000002.npz", [RecordedGroup(3, "r0", (attempt(0, 1.0),))])
    assert rates_of(tmp_path, 1.0, "x") == {"r0": 0.5, "r1": 0.0}
    assert rates_of(tmp_path, 0.5, "x") == {"r0": 0.75, "r1": 0.0}
    args = PassRateArgs(rollouts=str(tmp_path), min=0.25, missing="drop")
    assert pass_rate(rows("a", "b", "c"), args, context()) == [None, "pass rate below 0.25", "no pass rate"]


def test_rollouts_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    (tmp_path / "step_000001.npz").write_bytes(b"broken")
    with pytest.raises(ConfigError, match="args.rollouts: .* cannot be read"):
        rates_of(tmp_path, 1.0, "x")
    (tmp_path / "none").mkdir()
    with pytest.raises(ConfigError, match="holds no rollouts"):
        rates_of(tmp_path / "none", 1.0, "x")
