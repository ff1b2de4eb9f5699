"""Pages as a browser gets them, without one: NiceGUI's own simulation of it."""

import asyncio
import os
import shutil
import sys
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

pytest.importorskip("nicegui", reason="NiceGUI is not installed: the extra studio")

from nicegui import ui
from nicegui.testing import User
from nicegui.testing.general import nicegui_reset_globals, prepare_simulation

from roll.report.command import Page
from roll.report.run_files import RunFiles
from roll.studio.notes import Notes
from roll.studio.pages import builder, compare, report, run
from roll.studio.pages.runs import compare_address
from roll.studio.plans import Plan
from roll.studio.run_list import Glance, RunList, key_of
from roll.studio.server import application
from roll.studio.yaml_edit import Draft
from tests.unit.studio.test_rollouts import record, write
from tests.unit.studio.test_runs import add_step, make_run

SLOW_S = 3.5  # longer than NiceGUI waits for a page
PATIENT = 300  # looks, .1 s apart


@asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[httpx.AsyncClient]:
    with _same_modules(), nicegui_reset_globals():
        prepare_simulation()
        app = application([folder])
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client,
        ):
            yield client


@contextmanager
def _same_modules() -> Iterator[None]:
    """NiceGUI would have those of the pages imported anew, beside what other tests hold."""
    before = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == "roll"}
    try:
        yield
    finally:
        sys.modules.update(before)


def played(folder: Path, play: Callable[[httpx.AsyncClient], Coroutine[Any, Any, None]]) -> None:
    async def whole() -> None:
        async with opened(folder) as client:
            await play(client)

    asyncio.run(whole())


class Slow:
    """Looks at examples and runs that end when they are let go, or after a while."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, longest_s: float):
        self.go, self.num_begun, self.num_ended = threading.Event(), 0, 0
        self._longest_s = longest_s
        monkeypatch.setattr(builder, "examples", self._examples)
        monkeypatch.setattr(RunList, "glances", self._glances)

    def _examples(self) -> list[Draft]:
        self._end()
        return [Draft("tiny/slow", "rlvr", "max_steps: 3\n")]

    def _glances(self, *_: object) -> list[Glance]:
        self._end()
        return []

    def _end(self) -> None:
        self.num_begun += 1
        self.go.wait(self._longest_s)
        self.num_ended += 1


SEEN_AT_LAST = {
    "/": "No run yet",
    "/new": "begin from",
    "/run/0123": "no such run",
    "/run/0123/rollouts": "no such run",
    "/compare?runs=0123,../../etc": "Choose two or more runs",
}


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return what was logged, but for NiceGUI's word that tasks took more than 2 s to end with the pages."""
    texts = [record.getMessage() for record in caplog.records if record.levelname != "DEBUG"]
    return [text for text in texts if not text.startswith("Could not cancel")]


def test_a_first_look_that_takes_long_is_a_page_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Slow(monkeypatch, SLOW_S)

    async def play(client: httpx.AsyncClient) -> None:
        users = {path: User(client) for path in SEEN_AT_LAST}
        await asyncio.gather(*(user.open(path) for path, user in users.items()))  # it asserts 200
        for path, text in SEEN_AT_LAST.items():
            await users[path].should_see(text, retries=PATIENT)

    played(tmp_path, play)


def test_a_run_that_is_removed_while_somebody_looks_at_it_is_said_to_be_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(run, "REFRESH_S", 0.1)
    directory = make_run(tmp_path, "gone")

    async def play(client: httpx.AsyncClient) -> None:
        user = User(client)
        await user.open(f"/run/{key_of(directory)}")
        await user.should_see("last written", retries=PATIENT)
        shutil.rmtree(directory)
        await user.should_see("is no directory", retries=PATIENT)

    played(tmp_path, play)
    assert said(caplog) == []


def test_runs_are_compared_and_one_that_is_gone_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(compare, "REFRESH_S", 0.1)
    first, second = make_run(tmp_path / "a", "mine"), make_run(tmp_path / "b", "mine", exit_code=1, steps=4)
    make_run(tmp_path / "c", "third")
    keys = [*map(key_of, (first, second)), "0123"]

    async def play(client: httpx.AsyncClient) -> None:
        user = User(client)
        await user.open(compare_address(keys))
        for text in ("mine (a)", "mine (b)", "finished", "failed"):
            await user.should_see(text, retries=PATIENT)
        assert len(user.find(kind=ui.echart).elements) == 1, "the metric that both have"
        chart = next(iter(user.find(kind=ui.echart).elements))
        assert [line["name"] for line in chart.options["series"]] == ["mine (a)", "mine (b)"]
        add_step(first, 3, 0.75)
        for _ in range(PATIENT):
            if chart.options["series"][0]["data"][-1] == [3, 0.75]:
                break
            await asyncio.sleep(0.1)
        else:
            raise AssertionError("the new step is not drawn")
        shutil.rmtree(second)
        await asyncio.sleep(0.3)
        await user.should_see("mine (b)", retries=PATIENT)
        await user.open(compare_address([]))
        await user.should_see("Choose two or more runs", retries=PATIENT)

    played(tmp_path, play)
    assert said(caplog) == []


def test_the_list_has_columns_of_choice_notes_and_an_archive(tmp_path: Path) -> None:
    config = {"exp_name": "mine", "train": {"learning_rate": 1e-3}}
    one, two = make_run(tmp_path / "one", "one", config=config), make_run(tmp_path / "two", "two")

    async def play(client: httpx.AsyncClient) -> None:
        user = User(client)
        await user.open("/")
        await user.should_see(kind=ui.table, retries=PATIENT)
        (table,) = user.find(kind=ui.table).elements

        async def names(*wanted: str) -> None:
            for _ in range(PATIENT):
                if {row["key"] for row in table.rows} == {key_of(tmp_path / name) for name in wanted}:
                    return
                await asyncio.sleep(0.1)
            raise AssertionError([row["name"] for row in table.rows])

        await names("one", "two")
        columns = next(each for each in user.find(kind=ui.select).elements if each.multiple)
        columns.set_value(["name", "train.learning_rate", "rollout/reward_mean"])
        for _ in range(PATIENT):
            if {row.get("train.learning_rate") for row in table.rows} == {1e-3, None}:
                break
            await asyncio.sleep(0.1)
        assert [row["rollout/reward_mean"] for row in table.rows] == [0.2, 0.2]
        assert [column["name"] for column in table.columns] == columns.value
        user.find(kind=ui.table).trigger("write", {"what": "notes", "key": key_of(one), "text": " the first "})
        user.find(kind=ui.table).trigger("write", {"what": "names", "key": key_of(one), "text": "better"})
        group = next(each for each in user.find(kind=ui.select).elements if each.label == "group by")
        group.set_value("train.learning_rate")
        for _ in range(PATIENT):
            if [row.get("head") or row["name"] for row in table.rows if row["key"] != key_of(two)][-1] == "better":
                break
            await asyncio.sleep(0.1)
        heads = [(row["head"], row["rollout/reward_mean"]) for row in table.rows if "head" in row]
        assert heads == [("train.learning_rate none: mean of 1", 0.2), ("train.learning_rate 0.001: mean of 1", 0.2)]
        assert all(row["ran_for"] for row in table.rows)
        group.set_value("")
        table.selected = [row for row in table.rows if row["key"] == key_of(two)]
        user.find("Archive").click()
        await names("one")
        await user.open(f"/run/{key_of(one)}/rollouts")
        await user.should_see("better", retries=PATIENT)
        await user.open(f"/run/{key_of(one)}")
        await user.should_see(kind=ui.echart, retries=PATIENT)
        for _ in range(PATIENT):
            charts = user.find(kind=ui.echart).elements
            if "better" in {line["name"] for chart in charts for line in chart.options["series"]}:
                break
            await asyncio.sleep(0.1)
        else:
            raise AssertionError("no curve has the name")

    played(tmp_path, play)
    noted = Notes(tmp_path).noted
    assert (noted.notes, noted.archived) == ({key_of(one): "the first"}, [key_of(two)])
    assert noted.columns == ["name", "train.learning_rate", "rollout/reward_mean"]


def test_a_run_says_what_it_is_and_is_begun_again_from_its_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def plan(text: str, name: str, elsewhere: bool, draft: Draft) -> Plan:
        return Plan(f"planned in {draft.directory}: {text}", (), True)

    monkeypatch.setattr(builder, "make_plan", plan)
    settings = {"exp_name": "mine", "algorithm": "sft", "seed": 7, "pretrain": "org/small-model"}
    directory = make_run(tmp_path / "a", settings=settings, config=settings, directory=str(tmp_path), folders=["/code"])

    async def play(client: httpx.AsyncClient) -> None:
        user = User(client)
        await user.open(f"/run/{key_of(directory)}")
        await user.should_see("model: org/small-model", retries=PATIENT)
        (link,) = (each for each in user.find(kind=ui.link).elements if each.props["href"].startswith("/new?"))
        await user.open("/new")
        await user.should_see("planned in :", retries=PATIENT)  # the example, though the run is the latest
        for kind in user.find(kind=ui.select).elements:
            if kind.label == "kind of run":
                kind.set_value("sft")
        await user.should_see("sft_train:", retries=PATIENT)
        await user.should_not_see(f"in {tmp_path}")
        await user.open(link.props["href"])
        await user.should_see(f"planned in {tmp_path}:", retries=PATIENT)
        await user.should_see(f"in {tmp_path}, with code from /code", retries=PATIENT)
        assert "seed: 7" in next(iter(user.find(kind=ui.codemirror).elements)).value

    played(tmp_path, play)


def drawn(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the runs whose report is drawn."""
    runs: list[str] = []

    def render(given: Sequence[RunFiles], steps: int, back: str) -> Page:
        runs.extend(run.name for run in given)
        return Page(f"report {len(runs)}", steps, 0)

    monkeypatch.setattr(report, "render", render)
    return runs


def test_a_report_is_drawn_once_for_a_state_of_the_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = drawn(monkeypatch)
    first, second = make_run(tmp_path / "a", "a"), make_run(tmp_path / "b", "b")
    app = FastAPI()
    report.add(app, RunList([tmp_path]))
    browser = TestClient(app)

    def texts(*asked: Path) -> list[str]:
        return [browser.get(f"/report/{key_of(run)}").text for run in asked]

    assert texts(first, first, second, first) == ["report 1", "report 1", "report 2", "report 1"]
    add_step(first, 3, 0.5)
    assert texts(first, first, second) == ["report 3", "report 3", "report 2"]
    written = write(first, 1, record())
    assert texts(first, first) == ["report 4", "report 4"]
    before = written.stat()
    written.write_bytes(written.read_bytes().replace(b"four", b"five"))
    os.utime(written, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert texts(first) == ["report 5"], "the same size and time, another text"
    for change in ("logs/driver.log", "rollouts/step_000001.distributions.json"):
        (first / change).touch()
        texts(first, first)
    written.unlink()
    assert texts(first, second) == ["report 8", "report 2"]
    assert runs == ["a", "b", *"aaaaaa"]
