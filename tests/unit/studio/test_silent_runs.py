"""Runs with files that never answer: a pipe, a network disk that is gone."""

import io
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from roll.errors import ConfigError
from roll.report.command import run as report
from roll.studio import live_run as appended
from roll.studio import rollout_index
from roll.studio.disk_reads import Unanswered, Waits
from roll.studio.live_run import LiveRun
from roll.studio.pages import rollout_data
from roll.studio.rollout_index import Query, RolloutIndexes
from roll.studio.run_list import RunList, key_of
from roll.utils.files import open_regular
from tests.unit.studio.test_rollouts import record, write
from tests.unit.studio.test_runs import add_step, make_run

FILES = (
    "logs/run.json", "logs/metrics.jsonl", "logs/driver.log", "rollouts/step_000001.jsonl",
    "rollouts/step_000001.val.jsonl", "rollouts/step_000001.distributions.json", "restarts.jsonl",
)  # fmt: skip


def with_pipe(run: Path, name: str) -> Path:
    (run / name).parent.mkdir(exist_ok=True)
    (run / name).unlink(missing_ok=True)
    os.mkfifo(run / name)
    return run


def prompts(indexes: RolloutIndexes, run: Path) -> list[str]:
    index = indexes.updated(key_of(run))
    return [] if index is None else [row["prompt"] for row in index.rows(Query(), 0, 9).rows]


@pytest.mark.parametrize("name", FILES)
def test_a_pipe_in_a_run_hangs_neither_it_nor_others(tmp_path: Path, name: str) -> None:
    bad, good = make_run(tmp_path / "bad", "bad"), make_run(tmp_path / "good", "good")
    for run in (bad, good):
        write(run, 2, record(prompt_text=run.name))
    with_pipe(bad, name)
    found = RunList([tmp_path], patience_s=60.0)
    assert {glance.name for glance in found.glances()} == {"good", "bad"}
    assert [glance.state for glance in found.glances() if glance.name == "bad"] == (
        ["broken"] if name == "logs/run.json" else ["finished"]
    )
    indexes = RolloutIndexes(found)
    assert prompts(indexes, good) == ["good"]
    assert prompts(indexes, bad) == ([] if name in FILES[:2] else ["bad"]), "no metrics know its steps"
    if name != "logs/run.json":
        live = LiveRun(bad)
        live.update()
        assert (live.warnings(), live.spreads()) == ([], [])


def test_a_report_reads_no_pipe(tmp_path: Path) -> None:
    bad = make_run(tmp_path / "bad")
    words = [str(bad), "--out", str(tmp_path / "report.html")]
    for name in FILES[2:]:
        with_pipe(bad, name)
    assert "report.html" in report(words)[0]
    for name in FILES[:2]:
        with pytest.raises(ConfigError, match=f"{name} cannot be read: it is no regular file"):
            report([str(with_pipe(make_run(tmp_path / f"bad_{Path(name).stem}"), name)), *words[1:]])


class Dead:
    """A folder of which no file answers, until `answer`."""

    def __init__(self, folder: Path):
        self.folder, self.answers = folder, threading.Event()

    def open(self, path: Path) -> io.BufferedReader:
        if path.is_relative_to(self.folder):
            self.answers.wait()
        file = open_regular(path)
        assert isinstance(file, io.BufferedReader)
        return file


@pytest.fixture
def dead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Dead]:
    dead = Dead(make_run(tmp_path / "dead", "dead"))
    for module in (appended, rollout_index):
        monkeypatch.setattr(module, "open_regular", dead.open)
    yield dead
    dead.answers.set()


def test_a_run_that_does_not_answer_is_shown_and_hides_no_other(tmp_path: Path, dead: Dead) -> None:
    make_run(tmp_path / "good", "good")
    found = RunList([tmp_path], every_s=0.0)  # all that answers does so within its patience of a second
    for _ in range(3):
        shown = {glance.name: (glance.state, glance.step) for glance in found.glances()}
        assert shown == {"good": ("finished", 2), "dead": ("unknown", 0)}
    dead.answers.set()
    while {glance.state for glance in found.glances()} != {"finished"}:
        pass
    assert found.directory(key_of(dead.folder)) == dead.folder
    shutil.rmtree(dead.folder)
    assert [glance.name for glance in found.glances()] == ["good"]


def test_a_run_that_stops_to_answer_is_shown_as_it_was(tmp_path: Path, dead: Dead) -> None:
    dead.answers.set()
    found = RunList([tmp_path], every_s=0.0, patience_s=5.0)
    before = found.glances()
    dead.answers.clear()
    add_step(dead.folder, 3, 0.9)
    assert RunList([tmp_path]).glances()[0].step == 0
    assert [glance.step for glance in before] == [2]


def test_rollouts_of_other_runs_are_read_while_one_run_does_not_answer(tmp_path: Path, dead: Dead) -> None:
    good = make_run(tmp_path / "good")
    for run in (good, dead.folder):
        write(run, 1, record(prompt_text=run.name))
    found = RunList([tmp_path])
    indexes = RolloutIndexes(found)
    for _ in range(2):
        with pytest.raises(Unanswered, match="have not answered for 0.1 s"):
            indexes.updated(key_of(dead.folder), 0.1)
        assert prompts(indexes, good) == ["good"]
    app = FastAPI()
    rollout_data.add(app, indexes)
    browser = TestClient(app)
    assert browser.get(f"/data/{key_of(good)}/rollouts").json()["count"] == 1
    dead.answers.set()
    assert prompts(indexes, dead.folder) == ["dead"]


def test_work_under_a_name_is_joined_and_its_errors_reach_whoever_waits() -> None:
    waits, go, begun = Waits(), threading.Event(), []

    def work() -> int:
        begun.append(1)
        go.wait()
        return 7

    for _ in range(3):
        with pytest.raises(Unanswered):
            waits.get("a", work, 0.01)
    assert waits.get("b", lambda: 5) == 5
    go.set()
    assert waits.get("a", work) == 7 and len(begun) <= 2
    for error in (TimeoutError("its own"), ConfigError("wrong")):
        with pytest.raises(type(error), match=str(error)):
            waits.get("c", lambda error=error: (_ for _ in ()).throw(error))
