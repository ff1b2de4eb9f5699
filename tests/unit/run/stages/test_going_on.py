"""Stages as they run: in order, from each other's models, and on from wherever they were."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from roll.commands import run as cli
from tests.unit.run.stages.conftest import LONG, SHAPE, SHORT, WARM_UP, Runs

Write = Callable[..., None]


def run(*arguments: str) -> int:
    return cli.main("rlvr", ["--config_path", ".", "--config_name", "run", *arguments])


def model_of(runs: Runs, number: int, role: str = "actor_train") -> str | None:
    return runs.configs[number].model_roles[role].model_args.model_name_or_path


def test_stages_run_in_order_each_from_the_last_model_of_the_one_before(
    write: Write, runs: Runs, capsys: pytest.CaptureFixture[str]
) -> None:
    write()
    assert run() == 0, capsys.readouterr().err
    assert runs.done == [("run-warm-up", 0, 6), ("run-short", 0, 4), ("run-long", 0, 5)]
    assert model_of(runs, 0, "sft_train") == "model"
    assert model_of(runs, 1) == f"{Path.cwd()}/out/1-warm-up/checkpoints/step_000006/hf_model"
    assert model_of(runs, 2, "actor_infer") == f"{Path.cwd()}/out/2-short/checkpoints/step_000004/hf_model"
    shown = capsys.readouterr().out
    assert shown.index("Stage 3 of 3: long") < shown.index("\nStage 1: warm-up"), "all plans come first"
    assert shown.rstrip().endswith("All stages are finished.")


def test_what_is_finished_does_not_run_again(write: Write, runs: Runs, capsys: pytest.CaptureFixture[str]) -> None:
    write()
    assert run() == run() == 0
    assert len(runs.done) == 3
    assert "  finished, 4 steps: " in capsys.readouterr().out


def test_a_stage_that_was_stopped_goes_on_from_its_own_checkpoint(write: Write, runs: Runs) -> None:
    write()
    runs.most = 3
    assert [run() for _ in range(4)] == [130, 130, 130, 0]
    assert runs.done == [
        ("run-warm-up", 0, 3),
        ("run-warm-up", 3, 6),
        ("run-short", 0, 3),
        ("run-short", 3, 4),
        ("run-long", 0, 3),
        ("run-long", 3, 5),
    ]
    assert model_of(runs, 3) == model_of(runs, 2)


def test_a_dry_run_shows_all_plans_and_writes_nothing(
    write: Write, runs: Runs, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write()
    assert run("--dry_run") == 0
    shown = capsys.readouterr().out
    assert "Stage 1 of 3: warm-up, a run of the kind sft" in shown and "Stage 3 of 3: long" in shown
    assert "run-short: 4 steps, seed 42, output in out/2-short" in shown
    assert "of warm-up" in shown
    assert shown.rstrip().endswith("The plan works.")
    assert runs.configs == [] and not (folder / "out").exists()


def test_what_this_machine_lacks_for_a_later_stage_stops_the_first(
    write: Write, runs: Runs, capsys: pytest.CaptureFixture[str]
) -> None:
    write(WARM_UP, SHORT, {**LONG, "prompt_length": 100})
    assert run("--dry_run") == 2
    assert "stages[2] (long): sequence_length: 112 tokens" in capsys.readouterr().err
    assert run() == 2
    assert "stages[2] (long): sequence_length: 112 tokens are more than the 64" in capsys.readouterr().err
    assert runs.configs == []


def test_an_earlier_stage_that_would_go_on_is_refused_once_a_later_one_has_begun(
    write: Write, runs: Runs, capsys: pytest.CaptureFixture[str]
) -> None:
    write()
    assert run() == 0
    assert run("stages.short.max_steps=40") == 2
    said = capsys.readouterr().err
    assert "short is not finished (4 steps are done), but long began after it." in said
    assert "move the folders of long out of out" in said
    shutil.rmtree("out/3-long")
    assert run("stages.short.max_steps=40") == 0
    assert runs.done[-2:] == [("run-short", 4, 40), ("run-long", 0, 5)]


def test_a_stage_that_began_with_another_model_is_refused(
    write: Write, runs: Runs, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first stage is done again, from another model, and leaves a checkpoint under the same name."""
    write(WARM_UP, SHORT)
    assert run() == 0
    shutil.move("out/2-short", "aside")
    shutil.rmtree("out/1-warm-up")
    Path("model/config.json").write_text(json.dumps(SHAPE | {"hidden_size": 8}))
    assert run() == 0
    shutil.rmtree("out/2-short")
    shutil.move("aside", "out/2-short")
    assert run() == 2
    assert "short began with other models than warm-up would give it now." in capsys.readouterr().err
    assert run("--dry_run") == 2
    assert "short began with other models" in capsys.readouterr().err
    shutil.rmtree("out/1-warm-up")
    assert run() == 2
    assert "warm-up is not finished (it has no checkpoint), but short began after it." in capsys.readouterr().err


def test_a_damaged_model_is_not_handed_over(write: Write, runs: Runs, capsys: pytest.CaptureFixture[str]) -> None:
    write(WARM_UP, SHORT)
    runs.most = 3
    assert [run(), run()] == [130, 130]
    assert runs.done[-1] == ("run-short", 0, 3)
    weights = Path("out/1-warm-up/checkpoints/step_000006/hf_model/config.json")
    weights.write_text(weights.read_text().replace("4", "5"))
    assert run() == 2
    said = capsys.readouterr().err
    assert "has changed since it was written (digest): the checkpoint is damaged" in said
    assert "warm-up then goes on from the checkpoint before." in said
    assert len(runs.done) == 3


def test_afresh_is_refused_where_something_is(write: Write, runs: Runs, capsys: pytest.CaptureFixture[str]) -> None:
    write(shared={"resume_from_checkpoint": False})
    assert run() == 0
    assert run() == 2
    assert "resume_from_checkpoint: false, and out holds checkpoints of warm-up and short and long." in (
        capsys.readouterr().err
    )


def test_another_setting_of_a_finished_stage_is_told(
    write: Write, runs: Runs, capsys: pytest.CaptureFixture[str]
) -> None:
    write()
    assert run() == 0
    capsys.readouterr()
    assert run("stages.warm-up.max_grad_norm=0.5") == 0
    said = capsys.readouterr().out
    assert said.count("was finished under another setting") == 1
    assert "is not run again: max_grad_norm: 1.0 -> 0.5" in said


def test_the_exit_code_of_a_run_that_fails_is_that_of_the_stages(write: Write, runs: Runs) -> None:
    write()
    runs.most = 1
    assert run() == 130
    assert runs.done == [("run-warm-up", 0, 1)]
