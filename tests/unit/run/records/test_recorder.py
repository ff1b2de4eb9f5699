import json
import math
import sys
from typing import Any

import numpy as np
import pytest
import torch

from roll.rl.records.recorder import RecordLimits, RolloutRecord, RolloutRecorder, choose_groups
from tests.unit.rl.rollouts.test_filtered_step import group as group_of


def record(group: int, domain: str = "math", reward: float | None = 1.0, **changes) -> RolloutRecord:
    given = {"prompt_text": f"prompt {group}", "response_text": "four", "finish_reason": "stop", **changes}
    return RolloutRecord(reward=reward, group_id=group, domain=domain, **given)


def test_the_text_file_shows_prompt_once_and_each_response_with_reward_and_finish_reason(tmp_path):
    records = [
        record(7, reward=0.0, ground_truth="5"),
        record(7, reward=1.0, response_text="five\n= 5", finish_reason="length", extra={"turns": 2}),
    ]
    path = RolloutRecorder(tmp_path).record(12, records)
    assert path == tmp_path / "step_000012.txt"
    text = (tmp_path / "step_000012.txt").read_text()
    assert text.startswith("step 12 (train): 1 of 1 groups\n")
    assert "group 7 | math | 2 samples | reward 0.5 mean, 0 to 1" in text
    assert text.count("prompt:\n    prompt 7") == 1
    assert "ground truth:\n    5" in text
    assert "---- sample 1 | reward 0 | stop ---" in text
    assert "---- sample 2 | reward 1 | length ---" in text
    assert "    five\n    = 5" in text
    assert "* turns: 2" in text


def test_the_jsonl_file_holds_every_field(tmp_path):
    RolloutRecorder(tmp_path).record(3, [record(0), record(1, reward=None, ground_truth="x")], kind="val")
    rows = [json.loads(line) for line in (tmp_path / "step_000003.val.jsonl").read_text().splitlines()]
    assert rows[1] == {
        "step": 3,
        "prompt_text": "prompt 1",
        "response_text": "four",
        "reward": None,
        "group_id": 1,
        "domain": "math",
        "finish_reason": "stop",
        "ground_truth": "x",
        "extra": {},
        "prompt_tokens": 0,
        "response_tokens": 0,
    }
    assert "reward failed" in (tmp_path / "step_000003.val.txt").read_text()


def test_groups_are_chosen_by_domains():
    records = [record(g, domain="math" if g < 3 else "code") for g in range(5) for _ in range(3)]
    chosen = choose_groups(records, RecordLimits(num_groups=3, num_samples_per_group=2))
    assert [(group[0].group_id, len(group)) for group in chosen] == [(0, 2), (3, 2), (1, 2)]
    ((cut,),) = choose_groups([record(0, response_text="a" * 50 + "b" * 50)], RecordLimits(num_characters=20))
    assert cut.response_text == "a" * 10 + "\n[... 80 characters left out ...]\n" + "b" * 10


def test_all_files_together_stay_below_the_limit_and_the_oldest_go_first(tmp_path):
    recorder = RolloutRecorder(tmp_path, RecordLimits(total_bytes=5_000))
    for step in range(30):
        recorder.record(step, [record(0, response_text="x" * 400)])
    sizes = [path.stat().st_size for path in tmp_path.iterdir()]
    assert sum(sizes) <= 5_000
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left[-1] == "step_000029.txt"
    assert "step_000000.txt" not in left


def test_control_characters_of_a_model_do_not_reach_the_readers_terminal(tmp_path):
    path = RolloutRecorder(tmp_path).record(0, [record(0, response_text="\x1b[2Jhi\rbye\x9b1m")])
    assert path is not None
    text = path.read_text()
    assert "\\x1b[2Jhi\\x0dbye\\x9b1m" in text
    assert "\x1b" not in text


def test_a_disk_that_fails_stops_the_recording_and_not_the_run(tmp_path, caplog):
    (tmp_path / "file").write_text("in the way")
    recorder = RolloutRecorder(tmp_path / "file")
    assert recorder.record(0, [record(0)]) is None
    assert recorder.record(1, [record(0)]) is None
    assert len([r for r in caplog.records if "no longer recorded" in r.getMessage()]) == 1


CYCLE: dict[str, Any] = {}
CYCLE["self"] = [CYCLE]

UNWRITABLE = {
    "odd key": ({(1, 2): 3}, "a key is a tuple"),
    "cycle": (CYCLE, "it refers to itself"),
    "wide": (np.zeros((100, 100)), "it holds more than 1000 values"),
}


@pytest.mark.parametrize("name", UNWRITABLE)
def test_what_cannot_be_written_is_left_out_of_its_record_and_that_is_said_once(name, tmp_path, caplog):
    value, reason = UNWRITABLE[name]
    recorder = RolloutRecorder(tmp_path)
    for step in range(2):
        assert recorder.record(step, [record(g, extra={"good": 1, name: value}) for g in range(3)]) is not None
    rows = [json.loads(line) for line in (tmp_path / "step_000001.jsonl").read_text().splitlines()]
    assert [row["extra"] for row in rows] == [{"good": 1, name: f"(not recorded: {reason})"}] * 3
    assert f"* {name}: (not recorded: {reason})" in (tmp_path / "step_000001.txt").read_text()
    assert caplog.messages == [f"extra.{name} is left out of the recorded rollouts: not recorded: {reason}"]


def test_numbers_of_numpy_and_torch_and_objects_with_a_text_are_kept(tmp_path, caplog):
    extra = {
        "scalar": np.float32(0.5),
        "array": np.arange(3),
        "tensor": torch.ones(2, 1, dtype=torch.bfloat16),
        "zero dimensions": torch.tensor(7),
        "flag": np.bool_(True),
        "nan": math.nan,
        "set": {1},
        "numbered": {1: "a", None: "b"},
        "stream": sys.stdin,
        "long": "x" * 10_000,
        3: "a number's",
    }
    RolloutRecorder(tmp_path).record(0, [record(0, extra=extra)])
    kept = json.loads((tmp_path / "step_000000.jsonl").read_text())["extra"]
    assert kept.pop("stream").startswith("<")
    assert kept.pop("long") == "x" * 4000 + "\n[... 2000 characters left out ...]\n" + "x" * 4000
    assert kept == {
        "scalar": 0.5,
        "array": [0, 1, 2],
        "tensor": [[1.0], [1.0]],
        "zero dimensions": 7,
        "flag": True,
        "nan": None,
        "set": [1],
        "numbered": {"1": "a", "None": "b"},
        "3": "a number's",
    }
    assert caplog.messages == []


GROUPS = [group_of(0, 0.5, 0.5), group_of(1, 1.0, 1.0), group_of(2, 0.0, 1.0, failed=2), group_of(3, 0.0, 0.2)]


def test_a_validation_is_recorded_whole_and_of_a_step_its_first_groups(tmp_path):
    recorder = RolloutRecorder(tmp_path, RecordLimits(num_groups=2))
    assert [group.group_id for group in recorder.choose(GROUPS)] == [0, 1]
    assert len(recorder.choose(GROUPS, kind="val")) == len(GROUPS)
    assert RolloutRecorder(tmp_path, RecordLimits(num_groups=0)).choose(GROUPS, "val") == []


def test_distributions_are_of_all_groups_and_count_among_the_files(tmp_path):
    recorder = RolloutRecorder(tmp_path, RecordLimits(total_bytes=1_200))
    for step in range(3):
        recorder.measure(step, GROUPS, "val")
    (kept,) = tmp_path.iterdir()
    told = json.loads(kept.read_text())
    assert (kept.name, told["kind"]) == ("step_000002.val.distributions.json", "val")
    assert (told["step"], told["num_attempts"]) == (2, 8)
