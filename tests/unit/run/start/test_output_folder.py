"""What a run would write over is named before it starts."""

from pathlib import Path

import pytest

from roll.configs.sections.run import RunConfig
from roll.pipeline.rlvr.rlvr_pipeline import RLVRPipeline
from roll.run.display.view import View
from roll.run.records.run_record import RunRecord
from roll.run.start.start_checks import folder_problems
from tests.helpers.configs import config


def told(run: RunConfig) -> list[str]:
    return [problem.text for problem in folder_problems(run)]


def run_in(folder: Path, **changes: object) -> RunConfig:
    return config({"output_dir": str(folder), "exp_name": "mine", **changes})


def leave(folder: Path, exit_code: int | None, name: str = "mine") -> None:
    view: View = RLVRPipeline.view
    record = RunRecord(folder / "logs", view)
    record.begin(run_in(folder, exp_name=name), 0)
    if exit_code is not None:
        record.end(exit_code)


def test_a_finished_run_is_not_written_over_and_there_are_three_ways_out(tmp_path: Path) -> None:
    assert told(run_in(tmp_path)) == []
    leave(tmp_path, 0)
    (text,) = told(run_in(tmp_path))
    assert "holds a finished run, mine" in text
    for way in ("resume_from_checkpoint: true", "overwrite_output_dir: true", f"output_dir: {tmp_path}-2"):
        assert way in text
    assert (
        told(run_in(tmp_path, resume_from_checkpoint=True)) == told(run_in(tmp_path, overwrite_output_dir=True)) == []
    )
    assert told(run_in(tmp_path / "other")) == []


def test_a_run_of_another_name_and_checkpoints_count_and_a_failed_start_does_not(tmp_path: Path) -> None:
    leave(tmp_path, 1)
    assert told(run_in(tmp_path)) == []
    assert "holds the run mine, and this one is yours" in told(run_in(tmp_path, exp_name="yours"))[0]
    (tmp_path / "checkpoints" / "step_000002").mkdir(parents=True)
    assert "holds checkpoints up to step_000002" in told(run_in(tmp_path))[0]


def test_a_run_may_go_back_to_a_checkpoint_of_its_own_and_not_begin_from_another_ones(tmp_path: Path) -> None:
    leave(tmp_path, 0)
    own, other = tmp_path / "checkpoints" / "step_000002", tmp_path / "elsewhere" / "step_000002"
    assert told(run_in(tmp_path, resume_from_checkpoint=str(own))) == []
    assert len(told(run_in(tmp_path, resume_from_checkpoint=str(other)))) == 1


@pytest.mark.parametrize("mode", ["bench", "explore"])
def test_what_does_not_learn_replaces_nothing(tmp_path: Path, mode: str) -> None:
    leave(tmp_path, 0)
    assert told(run_in(tmp_path, mode=mode)) == []
