"""Recorded rollouts, read back."""

import json
from pathlib import Path

import pytest

from roll.rl.records.recorder import RolloutRecord, RolloutRecorder
from roll.run.records.replay import read
from roll.types.texts import Turn

GOOD = {"step": 1, "domain": "d", "group_id": 1, "prompt_text": "", "response_text": "", "finish_reason": "stop"}


def test_what_was_recorded_is_read_back(tmp_path: Path) -> None:
    turns = (
        Turn("P_\n_G", "\x1b[2J<answer>Down</answer>", "Down", 0.0, {"success": 0.0}),
        Turn("__\nPG", "hm", None, -0.5),
    )
    records = [
        RolloutRecord("p", "r", -0.5, 4, "Lake", "stop", turns=turns),
        RolloutRecord("p", "", None, 5, "Sea", "failed", extra={"failure": "it broke"}),
    ]
    RolloutRecorder(tmp_path).record(3, records)
    lake, sea = read(tmp_path / "step_000003.jsonl")
    assert (lake.step, lake.domain, lake.group_id, lake.reward, lake.finish_reason) == (3, "Lake", 4, -0.5, "stop")
    assert [(turn.observation, turn.response, turn.action, turn.reward) for turn in lake.turns] == [
        (turn.observation, turn.response, turn.action, turn.reward) for turn in turns
    ]
    assert (sea.reward, sea.extra) == (None, {"failure": "it broke"})


@pytest.mark.parametrize(
    "text, reason",
    [
        (
            json.dumps({"step": 1, "rollout/reward_mean": 0.5}),
            "line 1 is not a record of a rollout: domain: Field required",
        ),
        (
            json.dumps(GOOD | {"reward": 1.0}) + "\n[1]",
            "line 2 is not a record of a rollout: the line: Input should be",
        ),
        ("step 1 (train): 1 of 1 groups", "line 1 is not JSON"),
        ("", "it is empty"),
    ],
)
def test_what_is_no_record_is_refused(text: str, reason: str, tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text(text)
    with pytest.raises(ValueError, match=reason):
        list(read(tmp_path / "x.jsonl"))
