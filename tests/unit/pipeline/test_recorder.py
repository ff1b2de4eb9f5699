import json

from roll.pipeline.recorder import RecordLimits, RolloutRecord, RolloutRecorder, choose_groups


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
    }
    assert "reward failed" in (tmp_path / "step_000003.val.txt").read_text()


def test_groups_are_chosen_by_domains_taking_turns_and_stay_whole():
    records = [record(g, domain="math" if g < 3 else "code") for g in range(5) for _ in range(3)]
    chosen = choose_groups(records, RecordLimits(num_groups=3, num_samples_per_group=2))
    assert [(group[0].group_id, len(group)) for group in chosen] == [(0, 2), (3, 2), (1, 2)]


def test_long_texts_lose_their_middle():
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
    assert len([r for r in caplog.records if "not recorded any more" in r.getMessage()]) == 1
