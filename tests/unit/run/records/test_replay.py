"""Recorded rollouts, read back and shown."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from roll.rl.records.recorder import RecordLimits, RolloutRecord, RolloutRecorder
from roll.run.records import replay
from roll.types.texts import Turn


def test_replay_shows_recorded_episodes_turn_by_turn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    turns = (
        Turn("P_\n_G", "\x1b[2J<answer>Down</answer>", "Down", 0.0, {"success": 0.0}),
        Turn("__\nPG", "hm", None, -0.5),
    )
    records = [
        RolloutRecord("p", "r", -0.5, 4, "Lake", "stop", turns=turns),
        RolloutRecord("p", "", None, 5, "Sea", "failed", extra={"failure": "it broke"}),
    ]
    RolloutRecorder(tmp_path).record(3, records)
    file = tmp_path / "step_000003.jsonl"
    assert replay.main([str(file)]) == 0
    out = capsys.readouterr().out
    assert "Lake, step 3, group 4: reward -0.5, stop" in out
    assert "turn 1: action 'Down', reward +0, in all +0 (success 0)" in out
    assert "sees P_\n     _G\nsays \\x1b[2J<answer>Down</answer>" in out
    assert "turn 2: no action, reward -0.5, in all -0.5" in out
    assert "Sea, step 3, group 5: failed: it broke" in out
    assert replay.main([str(file), "--tag", "Lake"]) == 0
    assert "1 of 2 attempts" in capsys.readouterr().out


@pytest.mark.parametrize("module", ["roll.run.records.replay", "roll.run.records.replay"])
def test_replay_ends_quietly_when_its_reader_does(module: str, tmp_path: Path) -> None:
    turn = Turn("P_\n_G", "x" * 200_000, "Down", 0.0, {})  # more than a pipe holds
    record = RolloutRecord("p", "r", 1.0, 0, "Lake", "stop", turns=(turn,))
    RolloutRecorder(tmp_path, RecordLimits(num_characters=400_000)).record(0, [record])
    command = [sys.executable, "-m", module, str(tmp_path / "step_000000.jsonl")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.read(10)
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 0


def test_replay_shows_answers_below_their_prompt(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def answer(text: str, reward: float | None, group: int = 1, **extra: str) -> RolloutRecord:
        return RolloutRecord(f"1 + {group}?", text, reward, group, "math", "stop", str(1 + group), extra)

    records = [
        answer("2\u202e", 1.0, found="2"),
        answer("3\nno", 0.0),
        answer("", None, group=2, failure="too \x1b slow"),
    ]
    RolloutRecorder(tmp_path).record(7, records)
    assert replay.main([str(tmp_path / "step_000007.jsonl")]) == 0
    assert capsys.readouterr().out.splitlines()[:-1] == [
        "======== math, step 7, group 1: reward 1, stop",
        "asked 1 + 1?",
        "truth 2",
        "says  2\\u202e",
        "found: 2",
        "",
        "======== math, step 7, group 1: reward 0, stop",
        "says  3",
        "      no",
        "",
        "======== math, step 7, group 2: failed: too \\x1b slow",
        "asked 1 + 2?",
        "truth 3",
        "says  ",
        "",
    ]


def test_a_run_shows_its_last_recorded_step_or_the_one_that_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recorder = RolloutRecorder(tmp_path / "rollouts")
    for step, rewards in ((2, (1.0, 0.25)), (10, (0.5, 0.0, None))):
        records = [
            RolloutRecord("2 + 2?", f"answer {i}", reward, i, "math", "stop") for i, reward in enumerate(rewards)
        ]
        recorder.record(step, records)
        recorder.record(step, records[:1], "val.hard")

    def shown(*words: str) -> list[str]:
        assert replay.main([str(tmp_path), *words]) == 0
        out = capsys.readouterr().out
        return [line.removeprefix("says  ") for line in out.splitlines() if line.startswith("says")]

    assert shown() == ["answer 0", "answer 1", "answer 2"]
    assert shown("--step", "2") == ["answer 0", "answer 1"]
    assert shown("--min_reward", "0.1") == ["answer 0"]
    assert shown("--max_reward", "0.4") == ["answer 1"], "what failed has no reward"
    assert shown("--grep", "answer 2") == ["answer 2"]
    assert shown("--kind", "val.hard", "--step", "2") == ["answer 0"]
    for words, text in (
        (["--step", "3"], "step 3 was not recorded; those are 2, 10"),
        (["--kind", "val"], "hold no step_*.val.jsonl"),
    ):
        assert replay.main([str(tmp_path), *words]) == 2
        assert text in capsys.readouterr().err
    assert replay.main([str(tmp_path / "none")]) == 2
    assert capsys.readouterr().err == f"{tmp_path / 'none'} cannot be read: No such file or directory\n"


def test_records_that_a_full_disk_does_not_take_are_no_success(tmp_path: Path) -> None:
    file = tmp_path / "step_000001.jsonl"
    file.write_text(json.dumps(GOOD | {"reward": 1.0}) + "\n")
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "roll", "replay", str(file)]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == "roll replay failed:\n  - standard output cannot be written: No space left on device\n"


GOOD = {"step": 1, "domain": "d", "group_id": 1, "prompt_text": "", "response_text": "", "finish_reason": "stop"}


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
        (
            json.dumps(GOOD | {"reward": "x"}),
            "line 1 is not a record of a rollout: reward: Input should be a valid number",
        ),
        (
            json.dumps(GOOD | {"reward": 1, "turns": [1]}),
            "line 1 is not a record of a rollout: turns.0: Input should be",
        ),
        ("step 1 (train): 1 of 1 groups", "line 1 is not JSON"),
        ("[" * 100_000, "line 1 is not JSON"),
        ("", "it is empty"),
        ("\ud800", "codec can't decode"),
    ],
)
def test_replay_refuses_what_is_no_record(
    text: str, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "x.jsonl").write_bytes(text.encode("utf-8", "surrogatepass"))
    assert replay.main([str(tmp_path / "x.jsonl")]) == 2
    assert reason in capsys.readouterr().err
