"""Runs as the studio finds them, while they are written."""

import json
import os
import time
from datetime import datetime
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import psutil
import pytest

from roll.report.about import About, kind_name
from roll.report.charts import COLORS
from roll.report.run_files import find_run
from roll.run.display.view import Rows
from roll.run.records.run_record import RunStart
from roll.studio import run_list
from roll.studio.live_run import AppendedLines, LiveRun, process_of, state_of
from roll.studio.notes import Notes
from roll.studio.pages.charts import Curve, CurveStyle, line_options, phase_options, positions
from roll.studio.pages.compare import labels_of
from roll.studio.pages.log import last_lines, log_files
from roll.studio.pages.runs import _polyline, short_place
from roll.studio.run_list import RunList, key_of, ran_s


def start(**changes: object) -> RunStart:
    return RunStart.model_validate({"started": "2026-01-01T00:00:00+00:00", "steps_done": 0, "pid": 1} | changes)


def make_run(
    directory: Path, /, name: str = "mine", exit_code: int | None = 0, steps: int = 2, **beside: object
) -> Path:
    logs = directory / "logs"
    logs.mkdir(parents=True)
    story = {
        "roll_version": "1",
        "curves": ["rollout/reward_mean", "val/reward_mean"],
        "config": {"exp_name": name, "max_steps": 10},
        "starts": [start(exit_code=exit_code).model_dump()],
        **beside,
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


def test_a_run_is_read_as_it_grows(tmp_path: Path) -> None:
    live = LiveRun(make_run(tmp_path / "run"))
    assert live.update() and live.files.steps == {1, 2}
    assert not live.update()
    add_step(tmp_path / "run", 3, 0.9)
    assert live.update()
    assert live.files.rows[-1] == (3, {"rollout/reward_mean": 0.9, "time/train_s": 2.0})


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


def test_a_run_is_judged_again_only_when_its_files_say_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(tmp_path / "a", exit_code=None)
    judged: list[Path] = []
    monkeypatch.setattr(run_list, "about", lambda files: judged.append(files.directory) or About())
    runs = RunList([tmp_path], every_s=0.0)
    (first,), (again,) = runs.glances(), runs.glances()
    assert first == again and len(judged) == 1
    os.utime(run / "logs" / "metrics.jsonl", (1, 2_000_000_000))
    assert runs.glances()[0].written == 2_000_000_000 and len(judged) == 1
    add_step(run, 3, 0.75)
    assert runs.glances()[0].reward == 0.75 and len(judged) == 2


def test_notes_of_two_studios_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = Notes(tmp_path), Notes(tmp_path)
    first.write("notes", "a", "one")
    second.write("notes", "b", "two")
    first.archive(["c"], True)
    assert (second.noted.notes, second.noted.archived) == ({"a": "one", "b": "two"}, ["c"])
    file = tmp_path / ".studio.json"
    with monkeypatch.context() as patch:
        patch.setattr("roll.studio.notes.read_object", Mock(side_effect=PermissionError(13, "Permission denied")))
        first.write("notes", "a", "other")
    assert second.noted.notes == {"a": "one", "b": "two"}
    file.write_text('{"notes": {"a": "one"}, "columns": null}')
    assert second.noted.notes == {}
    second.write("notes", "c", "three")
    assert second.noted.notes == {"c": "three"}
    assert json.loads(file.with_name(".studio.json.bad").read_text())["notes"] == {"a": "one"}


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


def drawn(rows: Rows, name: str, **style: object) -> list[dict[str, Any]]:
    return line_options([Curve("mine", COLORS[0], rows)], name, CurveStyle(**style))["series"]  # type: ignore[arg-type]


def test_curves_have_the_numbers_of_the_rows_and_tips_without_markup() -> None:
    rows = [(1, {"a": 0.123456789}), (2, {"b": 1.0}), (3, {"a": 2.0})]
    options = line_options([Curve("mine", COLORS[0], rows)], "a", CurveStyle())
    assert options["series"][0]["data"] == [[1, 0.12346], [3, 2.0]]
    assert options["tooltip"]["renderMode"] == "richText"
    assert drawn(rows, "never measured") == []


def test_a_curve_of_many_steps_is_smoothed_as_far_as_asked() -> None:
    rows = [(step, {"a": float(step % 2)}) for step in range(50)]
    pale, full = drawn(rows, "a")
    assert pale["lineStyle"]["opacity"] < full["lineStyle"]["opacity"]
    assert {value for _, value in pale["data"]} == {0.0, 1.0}
    assert all(0.3 < value < 0.7 for _, value in full["data"][5:-5])
    assert [line["data"] for line in drawn(rows, "a", span=1)] == [pale["data"]]
    assert len(drawn(rows[:49], "a")) == 1, "few points stay as they are"


@pytest.mark.parametrize(
    "name, values, bounds",
    [
        ("rollout/truncated_fraction", [0.2, 0.3], (0.0, 1.0)),
        ("actor/clip_fraction", [0.001, 0.002], (0.0, 0.1)),
        ("rollout/reward_mean/math", [0.0, 1.0], (0.0, 1.0)),
        ("rollout/reward_mean", [-1.0, 1.0], (None, None)),
        ("rollout/response_length_mean", [10.0, 60.0], (0.0, 67.2)),
        ("rollout/response_length_mean", [3.0, 9.0], (None, None)),
        ("time/step_s", [5.94, 6.0], (0.0, 7.5)),
    ],
)
def test_an_axis_reaches_as_far_as_its_metric_can(
    name: str, values: list[float], bounds: tuple[float | None, float | None]
) -> None:
    rows = [(step, {name: value}) for step, value in enumerate(values)]
    options = line_options([Curve("", COLORS[0], rows)], name, CurveStyle(), [{"response_length": 64}])
    axis, (line,) = options["yAxis"], options["series"]
    assert (axis.get("min"), axis.get("max")) == pytest.approx(bounds)
    assert ("markLine" in line) == (bounds[1] == 67.2)


def test_steps_lie_where_time_and_tokens_put_them() -> None:
    rows = [(1, {"time/step_s": 30.0, "rollout/num_tokens": 500_000.0}), (2, {"time/train_s": 90.0})]
    assert positions(rows, "step") == {1: 1.0, 2: 2.0}
    assert positions(rows, "time") == {1: 0.5, 2: 2.0}
    assert positions(rows, "tokens") == {1: 0.5, 2: 0.5}


def test_several_runs_are_lines_of_their_own_colours() -> None:
    curves = [Curve("one", COLORS[0], [(1, {"a": 1.0})]), Curve("two", COLORS[1], [(1, {"b": 1.0}), (2, {"a": 3.0})])]
    lines = line_options(curves, "a", CurveStyle())["series"]
    assert [(line["name"], line["lineStyle"]["color"], line["data"]) for line in lines] == [
        ("one", COLORS[0], [[1, 1.0]]),
        ("two", COLORS[1], [[2, 3.0]]),
    ]


def test_phases_are_stacked() -> None:
    bars = phase_options([(1, {"time/step_s": 3.0, "time/train_s": 2.0})])["series"]
    assert {bar["name"]: bar["data"] for bar in bars}["train"] == [2.0]
    assert {bar["stack"] for bar in bars} == {"phases"}


def test_runs_of_one_name_are_told_apart_by_their_folders(tmp_path: Path) -> None:
    folders = ["out/a/run", "out/b/run", "out/c"]
    runs = [LiveRun(make_run(tmp_path / place, "same" if "run" in place else "other")).files for place in folders]
    assert labels_of(runs, [run.name for run in runs]) == ["same (a/run)", "same (b/run)", "other"]


@pytest.mark.parametrize(
    "config, name",
    [
        ({"rewards": {}, "rollout_batch_size": 8}, "rlvr"),
        ({"custom_envs": {}, "train_env_manager": {}}, "agentic"),
        ({"pipeline": "sft"}, "sft"),
        ({"algorithm": "sft"}, "sft"),
        ({"algorithm": ["sft"]}, ""),  # as somebody edited it
        ({}, ""),
    ],
)
def test_a_configuration_says_which_kind_of_run_it_is_of(config: dict[str, object], name: str) -> None:
    assert kind_name(config) == name


def test_the_time_of_a_run_is_that_of_its_starts() -> None:
    began = "2026-01-01T00:00:00+00:00"
    starts = [start(started=began, ended="2026-01-01T00:01:00+00:00"), start(started=began), start(started="?")]
    written = datetime.fromisoformat(began).timestamp() + 30
    assert ran_s(starts, written) == 90.0
    assert ran_s([], written) == 0.0


def test_the_list_draws_a_small_curve_and_short_places() -> None:
    assert _polyline((0.0, 1.0)) == "2.0,24.0 108.0,2.0"
    assert _polyline((3.0, 3.0)) == "2.0,13.0 108.0,13.0"
    assert _polyline((1.0,)) == _polyline(()) == ""
    assert short_place(Path("/out/a/b"), [Path("/other"), Path("/out")]) == "a/b"
    assert short_place(Path("/out"), [Path("/out")]) == "/out"


LOG = """cut off
2026-01-01 10:00:00 I [driver 1] a: ready
2026-01-01 10:00:01 W [driver 1] a: slow
  because of this
2026-01-01 10:00:02 D [driver 1] b: detail
"""


@pytest.mark.parametrize(
    "levels, words, numbers",
    [
        ("DIWEC", "", [0, 1, 2, 3, 4]),
        ("WEC", "", [0, 2, 3]),
        ("DIWEC", "SLOW", [2, 3]),
        ("DIWEC", "because", [3]),
        ("DI", "because", []),
    ],
)
def test_a_log_has_the_lines_of_a_level_with_what_continues_them(
    tmp_path: Path, levels: str, words: str, numbers: list[int]
) -> None:
    (tmp_path / "x.log").write_text(LOG)
    lines = LOG.splitlines()
    assert last_lines(tmp_path / "x.log", levels, words) == [lines[number] for number in numbers]
    assert last_lines(tmp_path / "nothing.log", levels, words) == []


def test_the_logs_of_driver_workers_and_programs_can_be_chosen(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    for place in ("logs/driver.log", "logs/workers/actor_train-0.err", "agents/mine/train/program-1.log"):
        (run / place).parent.mkdir(parents=True, exist_ok=True)
        (run / place).write_text("x\n")
    files = log_files(find_run(run))
    assert list(files) == ["logs/driver.log", "logs/workers/actor_train-0.err", "agents/mine/train/program-1.log"]
    (run / "agents/mine/train/work/deep").mkdir(parents=True)
    (run / "agents/mine/train/work/deep/x.log").write_text("x\n")
    (tmp_path / "outside.log").write_text("x\n")
    (run / "agents/mine/train/link.log").symlink_to(tmp_path / "outside.log")
    assert log_files(find_run(run)) == files, "neither a deeper file nor a link out of the run"
    assert files["logs/driver.log"] == run / "logs" / "driver.log"
