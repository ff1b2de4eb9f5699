"""Models that go to the hub beside a run."""

from __future__ import annotations

import logging
import threading
from pathlib import Path

import pytest

from roll.errors import RollError
from roll.run.saving import hub
from roll.run.saving.checkpoint import CheckpointStore
from roll.run.saving.hub import HubPushes, message_of
from roll.run.start.preflight import machine_report
from tests.helpers.cases import cases
from tests.helpers.configs import config


class Pushed:
    """Stands in for the hub: takes what may pass, and notes files and message of each commit."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.commits: list[tuple[str, str]] = []
        self.begun, self.may_pass = threading.Semaphore(0), threading.Semaphore(0)
        self.error: Exception | None = None
        monkeypatch.setattr(hub, "push", self)

    def __call__(self, folder: Path, repo: str, message: str, private: bool) -> str:
        self.begun.release()
        self.may_pass.acquire()
        if self.error is not None:
            raise self.error
        self.commits.append((message, (folder / "model.safetensors").read_text()))
        return "there"


@pytest.fixture
def pushed(monkeypatch: pytest.MonkeyPatch) -> Pushed:
    return Pushed(monkeypatch)


def saved(tmp_path: Path, step: int, store: CheckpointStore | None = None) -> Path:
    store = store or CheckpointStore(tmp_path / "mine" / "checkpoints")
    with store.writing(step) as directory:
        (directory / "hf_model").mkdir()
        (directory / "hf_model" / "model.safetensors").write_text(f"weights {step}")
    return store.directory / f"step_{step:06d}"


def test_a_checkpoint_that_is_removed_meanwhile_arrives(tmp_path: Path, pushed: Pushed) -> None:
    store = CheckpointStore(tmp_path / "mine" / "checkpoints", max_to_keep=1)
    pushes = HubPushes("someone/sorter", "mine", False)
    pushes.send(saved(tmp_path, 10, store))
    pushed.begun.acquire()
    saved(tmp_path, 20, store)
    assert [path.name for path in store.newest_first()] == ["step_000020"]
    pushed.may_pass.release()
    pushes.close(waits=True)
    assert pushed.commits == [("Step 10 of mine", "weights 10")]
    assert [path.name for path in store.directory.iterdir()] == ["step_000020"]


def test_of_those_that_wait_the_newest_goes(tmp_path: Path, pushed: Pushed, caplog: pytest.LogCaptureFixture) -> None:
    pushes = HubPushes("someone/sorter", "mine", False)
    with caplog.at_level(logging.WARNING):
        pushes.send(saved(tmp_path, 10))
        pushed.begun.acquire()
        for step in (20, 30, 40):
            pushes.send(saved(tmp_path, step))
        pushed.may_pass.release(2)
        pushes.close(waits=True)
    assert [message for message, _ in pushed.commits] == ["Step 10 of mine", "Step 40 of mine"]
    assert caplog.text.count("is skipped") == 2
    assert not list((tmp_path / "mine" / "checkpoints").glob(".*"))


def test_what_the_hub_refuses_is_a_warning_and_the_next_goes(
    tmp_path: Path, pushed: Pushed, caplog: pytest.LogCaptureFixture
) -> None:
    pushes = HubPushes("someone/sorter", "mine", False)
    pushed.error = RollError("someone/sorter: the hub refused (403)")
    pushes.send(saved(tmp_path, 10))
    pushed.begun.acquire()
    with caplog.at_level(logging.WARNING):
        pushed.may_pass.release()
        pushes.send(saved(tmp_path, 20))
        pushed.begun.acquire()
        pushed.error = None
        pushed.may_pass.release()
        pushes.close(waits=True)
    assert "Step 10 of mine was not uploaded: someone/sorter: the hub refused (403)" in caplog.text
    assert pushed.commits == [("Step 20 of mine", "weights 20")]


def test_a_hub_that_never_answers_does_not_hold_up_the_end(
    tmp_path: Path, pushed: Pushed, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(hub, "_LAST_PUSH_S", 0.01)
    pushes = HubPushes("someone/sorter", "mine", False)
    pushes.send(saved(tmp_path, 10))
    pushed.begun.acquire()
    pushes.close(waits=True)
    assert "gave up uploading the last model after 0 s" in caplog.text
    assert pushed.commits == []
    pushed.may_pass.release()


def test_a_copy_of_a_killed_run_is_removed_by_the_next(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "mine" / "checkpoints")
    saved(tmp_path, 10, store)
    (store.directory / ".step_000010.push-999999999").mkdir()
    store.clean()
    assert [path.name for path in store.directory.iterdir()] == ["step_000010"]


@pytest.mark.parametrize(
    ("offline", "token", "why"),
    [
        (False, None, "there is no token for the hub. `hf auth login` asks for one, or set HF_TOKEN."),
        (True, "secret", "HF_HUB_OFFLINE is set, so nothing can be uploaded: unset it."),
        (False, "secret", None),
    ],
)
def test_what_stands_against_sending_is_told_before_the_start(
    offline: bool, token: str | None, why: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.get_token", lambda: token)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", offline)
    tree = {"checkpoint_config": {"hub_model_id": "someone/sorter"}}
    found = [problem.text for problem in machine_report(config(tree | {"save_steps": 50})).problems]
    assert [text for text in found if "hub" in text] == ([f"checkpoint_config.hub_model_id: {why}"] if why else [])
    never = machine_report(config(tree | {"save_steps": 0})).problems
    assert not any("hub" in problem.text for problem in never)


def test_a_run_that_saves_nothing_sends_nothing() -> None:
    never = config({"checkpoint_config": {"hub_model_id": "someone/sorter"}, "save_steps": 0})
    assert never.hub_repo is None


@cases("folder, message")
def test_a_commit_names_step_and_run_where_they_are_known(folder: str, message: str) -> None:
    assert message_of(Path(folder)) == message
