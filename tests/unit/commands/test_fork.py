"""`roll fork`: the YAML that it makes of another run."""

from pathlib import Path

import pytest
import yaml

from roll.commands.fork import write_fork
from roll.errors import ConfigError
from roll.report.about import about
from roll.report.run_files import find_run
from roll.rl.pipeline import VIEW
from roll.run.records.run_record import RunRecord
from roll.run.saving.checkpoint import CheckpointStore, DriverState, write_state
from tests.helpers.configs import config


def first_run(folder: Path, **given: object) -> Path:
    settings = config({"output_dir": str(folder), "exp_name": "first", **given})
    RunRecord(folder / "logs", VIEW).begin(settings, steps_done=0)
    for step in (5, 10):
        with CheckpointStore(folder / "checkpoints").writing(step) as directory:
            write_state(directory, DriverState(steps_done=step, run={}))
    return folder


def test_a_fork_has_what_the_run_was_given_and_its_own_place(tmp_path: Path) -> None:
    first = first_run(tmp_path / "first", max_steps=20, seed=3)
    file = write_fork(find_run(first), "5", tmp_path / "other")
    tree = yaml.safe_load(file.read_text())
    assert tree["resume_from_checkpoint"] == str(first / "checkpoints" / "step_000005")
    assert (tree["output_dir"], tree["exp_name"]) == (str(tmp_path / "other"), "other")
    assert (tree["max_steps"], tree["seed"]) == (20, 3)
    assert "eval_steps" not in tree and "logging_dir" not in tree, "what nobody set follows anew"


def test_a_run_records_what_it_is_a_fork_of(tmp_path: Path) -> None:
    first = find_run(first_run(tmp_path / "first"))
    forks = (("5", True, "fork", "fork of first@5"), ("", False, "why seed=2", "why seed=2 of first"))
    for step, resumes, kind, forked in forks:
        write_fork(first, step, tmp_path / "other", (), resumes, kind)
        RunRecord(tmp_path / "other/logs", VIEW).begin(config({"output_dir": str(tmp_path / "other")}), steps_done=0)
        assert about(find_run(tmp_path / "other")).forked == forked


def test_without_a_step_it_is_the_newest_checkpoint_and_a_moved_run_has_its_own(tmp_path: Path) -> None:
    moved = first_run(tmp_path / "first").rename(tmp_path / "moved")
    tree = yaml.safe_load(write_fork(find_run(moved), "", tmp_path / "other").read_text())
    assert tree["resume_from_checkpoint"] == str(moved / "checkpoints" / "step_000010")


def test_a_step_without_a_checkpoint_and_a_secret_are_told(tmp_path: Path) -> None:
    first = find_run(first_run(tmp_path / "first"))
    with pytest.raises(ConfigError, match=r"no checkpoint of step 7; it has: step_000010, step_000005"):
        write_fork(first, "7", tmp_path / "other")
    secret = find_run(first_run(tmp_path / "secret", system_envs={"HF_TOKEN": "hf_0123456789"}))
    with pytest.raises(ConfigError, match=r"system_envs.HF_TOKEN"):
        write_fork(secret, "", tmp_path / "other")


def test_a_fork_writes_nothing_where_the_first_run_wrote_and_takes_secrets_again(tmp_path: Path) -> None:
    kwargs = {"jsonl": {"log_dir": str(tmp_path / "elsewhere")}}
    first = find_run(first_run(tmp_path / "first", system_envs={"HF_TOKEN": "hf_0123456789"}, tracker_kwargs=kwargs))
    file = write_fork(first, "", tmp_path / "other", ["system_envs.HF_TOKEN=hf_1"])
    assert "elsewhere" not in file.read_text() and "checkpoint_config" not in yaml.safe_load(file.read_text())
