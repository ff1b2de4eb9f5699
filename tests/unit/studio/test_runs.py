"""Runs as the studio finds them, while they are written."""

import json
import os
import time
from pathlib import Path

import psutil
import pytest

from roll.run.records.run_record import RunStart
from roll.run.tracking.local import write_metrics
from roll.studio.live_run import AppendedLines, LiveRun, process_of, state_of
from roll.studio.pages.run import line_options, phase_options
from roll.studio.run_list import RunList, key_of


def start(**changes: object) -> RunStart:
    return RunStart.model_validate({"started": "2026-01-01T00:00:00+00:00", "steps_done": 0, "pid": 1} | changes)


def make_run(directory: Path, name: str = "mine", exit_code: int | None = 0, steps: int = 2) -> Path:
    logs = directory / "logs"
    logs.mkdir(parents=True)
    story = {
        "roll_version": "1",
        "curves": ["rollout/reward_mean", "val/reward_mean"],
        "config": {"exp_name": name, "max_steps": 10},
        "starts": [start(exit_code=exit_code).model_dump()],
    }
    (logs / "run.json").write_text(json.dumps(story))
    for step in range(1, steps + 1):
        add_step(directory, step, step / 10)
    return directory


def add_step(directory: Path, step: int, reward: float) -> None:
    with (directory / "logs" / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"step": step, "time": "x", "rollout/reward_mean": reward, "time/train_s": 2.0}) + "\n")


def test_lines_are_given_once_and_whole(tmp_path: Path) -> None:
    lines = AppendedLines(tmp_path / "file")
    assert lines.read() == (False, [])
    lines.path.write_bytes(b"one\ntw")
    assert lines.read() == (True, [b"one"])
    with lines.path.open("ab") as file:
        file.write(b"o\nthree\n")
    assert lines.read() == (False, [b"two", b"three"])
    assert lines.read() == (False, [])


def test_a_file_that_was_replaced_or_cut_is_read_anew(tmp_path: Path) -> None:
    lines = AppendedLines(tmp_path / "file")
    lines.path.write_bytes(b"one\ntwo\n")
    lines.read()
    (tmp_path / "other").write_bytes(b"one\nTWO\n3\n")
    os.replace(tmp_path / "other", lines.path)
    assert lines.read() == (True, [b"one", b"TWO", b"3"])
    lines.path.write_bytes(b"1\n")
    assert lines.read() == (True, [b"1"])
    lines.path.unlink()
    assert lines.read() == (True, [])


@pytest.mark.parametrize("most_bytes, found", [(4, [b"two"]), (5, [b"two"]), (7, [b"two"]), (8, [b"one", b"two"])])
def test_of_the_end_of_a_file_the_whole_lines_count(tmp_path: Path, most_bytes: int, found: list[bytes]) -> None:
    lines = AppendedLines(tmp_path / "file", most_bytes)
    lines.path.write_bytes(b"one\ntwo\n")
    assert lines.read() == (True, found)


def test_a_run_is_read_as_it_grows(tmp_path: Path) -> None:
    live = LiveRun(make_run(tmp_path / "run"))
    assert live.update() and live.files.steps == {1, 2}
    assert not live.update()
    add_step(tmp_path / "run", 3, 0.9)
    assert live.update()
    assert live.files.rows[-1] == (3, {"rollout/reward_mean": 0.9, "time/train_s": 2.0})


def test_lines_that_are_no_metrics_are_left_out(tmp_path: Path) -> None:
    live = LiveRun(make_run(tmp_path / "run"))
    with (tmp_path / "run" / "logs" / "metrics.jsonl").open("a") as file:
        file.write('[]\n{"step": "x"}\n\x00\n{"step": 5, "a": NaN, "b": 1e999, "c": 3}\n')
    live.update()
    assert live.files.rows[-1] == (5, {"c": 3})


def test_warnings_come_with_the_log(tmp_path: Path) -> None:
    live = LiveRun(make_run(tmp_path / "run"))
    assert live.warnings() == []
    log = tmp_path / "run" / "logs" / "driver.log"
    log.write_text("2026-01-01 10:00:00 W [a:1] slow 3 s\n2026-01-01 10:00:01 I [a:1] fine\n")
    assert [(line.text, line.count) for line in live.warnings()] == [("slow 3 s", 1)]
    with log.open("a") as file:
        file.write("2026-01-01 10:00:02 W [a:1] slow 9 s\n")
    assert [(line.text, line.count) for line in live.warnings()] == [("slow 9 s", 2)]


def test_runs_below_folders_are_found_with_their_last_numbers(tmp_path: Path) -> None:
    make_run(tmp_path / "a" / "one", "one", exit_code=1)
    make_run(tmp_path / "a" / "one" / "stages" / "two", "two", steps=3)
    make_run(tmp_path / "a" / "checkpoints" / "hidden")
    make_run(tmp_path / "b", "folder itself")
    found = {glance.name: glance for glance in RunList([tmp_path / "a", tmp_path / "b", tmp_path / "c"]).glances()}
    assert {name: (each.state, each.step, each.reward, each.max_steps) for name, each in found.items()} == {
        "one": ("failed", 2, 0.2, 10),
        "two": ("finished", 3, 0.3, 10),
        "folder itself": ("finished", 2, 0.2, 10),
    }


def test_only_a_run_that_was_found_has_a_directory(tmp_path: Path) -> None:
    run, outside = make_run(tmp_path / "in" / "run"), make_run(tmp_path / "outside")
    runs = RunList([tmp_path / "in"])
    assert runs.directory(key_of(run)) == run
    assert [runs.directory(key) for key in (key_of(outside), "../outside", "")] == [None] * 3


def test_a_damaged_run_hides_no_other(tmp_path: Path) -> None:
    make_run(tmp_path / "good", "good")
    make_run(tmp_path / "bad")
    (tmp_path / "bad" / "logs" / "run.json").write_text("{")
    glances = {glance.name: glance.state for glance in RunList([tmp_path]).glances()}
    assert glances == {"good": "finished", "bad": "broken"}


def test_a_run_goes_on_while_its_process_is_there() -> None:
    own = start(pid=os.getpid(), started="2100-01-01T00:00:00+00:00")
    assert process_of(own) == psutil.Process()
    assert state_of([own], silent_s=1e9) == "running"


def test_another_process_that_has_got_the_number_is_not_the_run() -> None:
    earlier = start(pid=os.getpid(), started="2001-01-01T00:00:00+00:00")
    assert process_of(earlier) is None
    assert state_of([earlier], silent_s=1e9) == "killed"
    assert state_of([earlier], silent_s=1.0) == "running", "it may be of another machine"


@pytest.mark.parametrize(
    "code, state", [(0, "finished"), (1, "failed"), (130, "stopped"), (143, "stopped"), (137, "failed")]
)
def test_the_exit_code_says_how_a_run_ended(code: int, state: str) -> None:
    assert state_of([start(exit_code=code)], silent_s=0.0) == state
    assert state_of([], silent_s=time.time()) == "unknown"


def test_curves_have_the_numbers_of_the_rows_and_tips_without_markup() -> None:
    options = line_options([(1, {"a": 0.123456789}), (2, {"b": 1.0}), (3, {"a": 2.0})], "a")
    assert options["series"][0]["data"] == [[1, 0.12346], [3, 2.0]]
    assert options["tooltip"]["renderMode"] == "richText"
    assert len(line_options([(step, {"a": 1.0}) for step in range(30)], "a")["series"]) == 2


def test_starts_that_were_begun_anew_are_drawn_beside_the_run(tmp_path: Path) -> None:
    options = line_options([(1, {"a": 1.0})], "a", {"start 2": [(1, {"a": 5.0})], "start 1": [(1, {"b": 5.0})]})
    assert [(line["name"], line["data"]) for line in options["series"]] == [("a", [[1, 1.0]]), ("start 2", [[1, 5.0]])]
    (tmp_path / "logs").mkdir()
    for name, reward in (("metrics", 0.9), ("metrics.1", 0.1)):
        write_metrics(tmp_path / "logs" / f"{name}.jsonl", [(1, {"rollout/reward_mean": reward})])
    live = LiveRun(tmp_path)
    live.update()
    assert [start.rows for start in live.earlier()] == [[(1, {"rollout/reward_mean": 0.1})]]


def test_phases_are_stacked() -> None:
    bars = phase_options([(1, {"time/step_s": 3.0, "time/train_s": 2.0})])["series"]
    assert {bar["name"]: bar["data"] for bar in bars}["train"] == [2.0]
    assert {bar["stack"] for bar in bars} == {"phases"}
