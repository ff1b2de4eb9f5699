"""run.json: what a run says of itself."""

import json
import re
import socket
import subprocess
from pathlib import Path

import pytest

from roll.errors import ResourceError
from roll.rl.pipeline import VIEW
from roll.run.records.run_record import RUN_FILE, RunRecord, commit_of, read_story
from tests.helpers.configs import config
from tests.unit.run.test_run import Counting

GIVEN = {"system_envs": {"HF_TOKEN": "hf_0123456789"}, "max_steps": 7}


def test_a_record_has_the_configuration_without_its_secrets_and_how_the_run_ended(tmp_path: Path) -> None:
    record = RunRecord(tmp_path, VIEW)
    record.begin(config(GIVEN), steps_done=0)
    assert read_story(tmp_path / RUN_FILE).starts[0].exit_code is None
    record.cause = "the hub refused hf_0123456789"
    record.end(1)
    story = read_story(tmp_path / RUN_FILE)
    assert story.config["system_envs"] == {"HF_TOKEN": "***"}
    assert (story.config["max_steps"], story.curves) == (7, ("rollout/reward_mean", "val/reward_mean"))
    (start,) = story.starts
    assert (start.exit_code, start.cause, start.steps_done) == (1, "the hub refused ***", 0)
    assert start.ended is not None and start.ended >= start.started


def test_a_start_names_its_machine_and_its_commit_and_a_record_without_them_is_read(tmp_path: Path) -> None:
    RunRecord(tmp_path, VIEW).begin(config(GIVEN), steps_done=0)
    (start,) = read_story(tmp_path / RUN_FILE).starts
    assert start.host == socket.gethostname() and re.match(r"\d+ cores, \d+ GiB", start.machine)
    assert re.fullmatch(r"([0-9a-f]{10,}(-dirty)?)?", start.commit)
    older = json.loads((tmp_path / RUN_FILE).read_text())
    for key in ("host", "machine", "commit"):
        del older["starts"][0][key]
    (tmp_path / RUN_FILE).write_text(json.dumps(older))
    assert read_story(tmp_path / RUN_FILE).starts[0].commit == ""


def test_a_commit_is_that_of_the_folder_itself_and_says_where_files_differ(tmp_path: Path) -> None:
    def git(*words: str) -> None:
        author = ("-c", "user.name=a", "-c", "user.email=a@b")
        subprocess.run(("git", "-C", str(tmp_path), *author, *words), check=True, capture_output=True)

    assert commit_of(tmp_path) == ""
    git("init")
    (tmp_path / "inner").mkdir()
    (tmp_path / "file").write_text("a")
    git("add", "file")
    git("commit", "-m", "a")
    assert re.fullmatch("[0-9a-f]{10,}", commit_of(tmp_path)) and commit_of(tmp_path / "inner") == ""
    (tmp_path / "file").write_text("b")
    assert commit_of(tmp_path).endswith("-dirty")


def test_a_resumed_run_keeps_its_earlier_starts_and_a_new_one_does_not(tmp_path: Path) -> None:
    for steps_done, exit_code in ((0, 1), (3, 143), (5, 0)):
        record = RunRecord(tmp_path, VIEW)
        record.begin(config(GIVEN), steps_done)
        record.end(exit_code)
    starts = read_story(tmp_path / RUN_FILE).starts
    assert [(start.steps_done, start.exit_code) for start in starts] == [(0, 1), (3, 143), (5, 0)]
    RunRecord(tmp_path, VIEW).begin(config(GIVEN), steps_done=0)
    assert len(read_story(tmp_path / RUN_FILE).starts) == 1


def test_a_run_records_its_end_whatever_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Done, failed in words, and by an error of ours, which goes on to whoever started it."""
    assert Counting(tmp_path, "never").run() == 0
    assert ending(tmp_path) == (0, "")
    for error, expected in ((ResourceError("no room"), "ResourceError: no room"), (KeyError("x"), "KeyError: 'x'")):
        run = Counting(tmp_path, "never")

        def step(step: int, error: Exception = error) -> dict[str, float]:
            raise error

        monkeypatch.setattr(run, "step", step)
        if isinstance(error, KeyError):
            with pytest.raises(KeyError):
                run.run()
        else:
            assert run.run() == 1
        code, cause = ending(tmp_path)
        assert code == 1 and cause.splitlines()[0] == expected


def test_a_disk_that_takes_no_record_ends_no_run(tmp_path: Path) -> None:
    (tmp_path / RUN_FILE).mkdir()
    record = RunRecord(tmp_path, VIEW)
    record.begin(config(GIVEN), steps_done=0)
    record.end(0)
    assert (tmp_path / RUN_FILE).is_dir()


def ending(directory: Path) -> tuple[int | None, str]:
    (start,) = read_story(directory / "logs" / RUN_FILE).starts
    return start.exit_code, start.cause
