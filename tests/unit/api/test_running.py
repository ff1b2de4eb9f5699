"""`roll.start`: a run that is iterated over, and how it ends."""

import asyncio
import gc
import logging
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import roll
from roll.errors import ConfigError, WorkerError
from roll.utils.imports import script_code
from tests.unit.api.toy_run import ToyRun


@pytest.fixture
def keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("roll.run.loop.Run._write_report", lambda _: None)
    ToyRun.closed = 0
    before, root = signal.getsignal(signal.SIGINT), logging.getLogger()
    level, handlers = root.level, [*root.handlers]
    yield {
        "pipeline": "tests.unit.api.toy_run:SPEC",
        "exp_name": "toy",
        "pretrain": "org/model",
        "max_steps": 4,
        "save_steps": 2,
        "sequence_length": 8,
        "num_gpus_per_node": 1,
        "track_with": ["jsonl"],
        "sft_train.data_args.file_name": "rows.jsonl",
        "sft_train.strategy_args.strategy_name": "deepspeed_train",
        "sft_train.device_mapping": [0],
    }
    assert signal.getsignal(signal.SIGINT) == before
    assert script_code() == {}
    assert (root.level, root.handlers) == (level, handlers)


def test_each_step_comes_with_its_number_its_metrics_and_its_samples(keys: dict[str, Any]) -> None:
    run = roll.start(keys, max_steps=3)
    seen = [(s.number, s.metrics["rollout/reward_mean"], [r["response_text"] for r in s.samples]) for s in run]
    assert seen == [(1, 0.0, ["0"]), (2, 1 / 3, ["1"]), (3, 2 / 3, ["2"])]
    assert run.metrics.column("rollout/reward_mean") == [0.0, 1 / 3, 2 / 3]
    assert ToyRun.closed == 1


def test_a_run_that_is_finished_is_the_run_that_is_opened(keys: dict[str, Any]) -> None:
    done = roll.start(keys).finish()
    assert (done.name, done.exit_code, done.cause) == ("toy", 0, "")
    assert [path.name for path in done.checkpoints] == ["step_000002", "step_000004"]
    assert done.model == done.checkpoints[-1] / "hf_model"
    assert [row["response_text"] for row in done.rollouts] == ["0", "1", "2", "3"]
    assert done.rollouts.at(2) == [row for row in done.rollouts if row["step"] == 2]
    opened = roll.open("output/toy")
    assert opened.metrics == done.metrics
    assert opened.config["max_steps"] == 4
    assert (opened.path, opened.checkpoints) == (done.path, done.checkpoints)


def test_a_loop_that_is_left_ends_its_run_at_once(keys: dict[str, Any]) -> None:
    run = roll.start(keys)
    for step in run:
        if step.number == 1:
            break
    assert ToyRun.closed == 1
    assert [step.number for step in roll.start(keys)] == [1, 2, 3, 4]


def test_an_exception_in_the_loop_ends_its_run_at_once(keys: dict[str, Any]) -> None:
    run = roll.start(keys)
    with pytest.raises(ZeroDivisionError):
        for step in run:
            _ = 1 / (step.number - 2)
    assert ToyRun.closed == 1


def test_a_with_block_ends_a_run_whose_iterator_is_still_held(keys: dict[str, Any]) -> None:
    with roll.start(keys) as run:
        steps = iter(run)
        next(steps)
        assert ToyRun.closed == 0
    assert ToyRun.closed == 1
    assert [*steps] == []


def test_save_in_the_loop_is_the_checkpoint_of_the_step_and_stop_ends_after_it(keys: dict[str, Any]) -> None:
    run = roll.start(keys, save_steps=0)
    saved = []
    for step in run:
        if step.number == 1:
            saved = [run.save(), run.save()]
        if step.number == 3:
            run.stop()
    names = [path.name for path in saved if path]
    assert names == ["step_000001", "step_000001"]
    assert [path.name for path in roll.open(run.output_dir).checkpoints] == ["step_000001", "step_000003"]
    assert roll.open(run.output_dir).exit_code == 0


def test_ctrl_c_finishes_and_saves_the_step_and_is_raised_once_all_has_ended(keys: dict[str, Any]) -> None:
    run, seen = roll.start(keys, save_steps=0), []
    with pytest.raises(KeyboardInterrupt):
        for step in run:
            seen.append(step.number)
            signal.raise_signal(signal.SIGINT)
    assert (seen, ToyRun.closed) == ([1], 1)
    assert [path.name for path in roll.open("output/toy").checkpoints] == ["step_000001"]
    assert roll.open("output/toy").exit_code == 130


def test_a_run_that_fails_raises_its_error_and_says_it_in_its_folder(keys: dict[str, Any]) -> None:
    with pytest.raises(WorkerError, match="actor_train rank 0 died"):
        roll.start(keys, exp_name="fails").finish()
    assert "actor_train rank 0 died" in roll.open("output/fails").cause
    assert ToyRun.closed == 1


def test_a_run_iterates_where_an_event_loop_runs_as_in_a_notebook(keys: dict[str, Any]) -> None:
    async def cell() -> list[int]:
        return [step.number for step in roll.start(keys)]

    assert asyncio.run(cell()) == [1, 2, 3, 4]


def test_misuse_is_said_in_one_sentence(keys: dict[str, Any]) -> None:
    run = roll.start(keys)
    with pytest.raises(ConfigError, match="nothing can be saved before its first step"):
        run.save()
    for _ in run:
        with pytest.raises(ConfigError, match="This run is being iterated over"):
            iter(run)
        with pytest.raises(ConfigError, match="Another run of this process has not ended yet"):
            roll.start(keys)
    with pytest.raises(ConfigError, match="This run has ended. Call roll.start again"):
        iter(run)
    never = roll.start(keys, exp_name="never")
    never.close()
    with pytest.raises(ConfigError, match="This run has ended. Call roll.start again"):
        iter(never)


def test_a_run_that_is_never_iterated_over_starts_nothing_and_is_in_nobodys_way(keys: dict[str, Any]) -> None:
    roll.start(keys)
    gc.collect()
    assert ToyRun.closed == 0
    assert len([*roll.start(keys)]) == 4


def test_keys_win_over_those_of_a_yaml_and_mistakes_come_all_at_once(keys: dict[str, Any], tmp_path: Path) -> None:
    lines = [f"{key}: {value}" for key, value in keys.items() if "." not in key]
    section = "sft_train: {data_args: {file_name: rows.jsonl}, strategy_args: {strategy_name: deepspeed_train}}"
    Path("my.yaml").write_text("\n".join([*lines, section]).replace("'", '"') + "\n")
    dotted = {"sft_train.device_mapping": [0], "sft_train.training_args.learning_rate": 0.25}
    run = roll.start("my.yaml", max_steps=2, **dotted)
    assert run.config.max_steps == 2
    assert run.config.sections["sft_train"].training_args.learning_rate == 0.25
    with pytest.raises(ConfigError) as error:
        roll.start("my.yaml", max_step=2, sft_train={"device_mapping": [0], "training_args": {"learning_rat": 1}})
    assert [text.split(".")[0] for text in error.value.problems] != []
    assert "max_step" in str(error.value) and "learning_rat" in str(error.value)
