"""Whole runs that lose a process or are interrupted: what must end ends, what can go on goes on."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.test_megatron import HF_SAMPLER
from tests.e2e.test_rlvr import assert_engine_and_trainer_agree
from tests.helpers.runs import END_LIMIT_S, Run

StartRun = Callable[..., Run]


@pytest.mark.slow
def test_an_engine_of_two_that_hangs_is_ended_and_replaced(sort_data: Path, start_run: StartRun):
    """The engine's own process is stopped, amid a rollout, and does not go on."""
    lengths = ("max_steps=6", "eval_steps=-1", "save_steps=-1", "actor_infer.backend_timeout=1")
    run = start_run(sort_data, "tiny_sort_vllm_2_replicas", *lengths)
    run.wait_for_step(2)
    engine = next(process for process in run.processes() if "EngineCore" in process.name())
    engine.suspend()
    run.finished()
    assert "no sign of life for 1 min" in run.text
    assert run.metrics[6]["rollout/restarted_engines"] == 1
    assert_engine_and_trainer_agree(run)


@pytest.mark.slow
@pytest.mark.parametrize(
    "example, keys", [("tiny_sort", ()), ("tiny_sort_fsdp2", ()), ("tiny_sort_megatron_pp", HF_SAMPLER)]
)
def test_a_killed_trainer_ends_the_run_with_its_name_and_leaves_nothing_behind(
    example: str, keys: tuple[str, ...], sort_data: Path, start_run: StartRun
):
    """The other rank or stage waits for it inside a collective, and must not do so for ever."""
    run = start_run(sort_data, example, "max_steps=10000", "eval_steps=-1", "save_steps=-1", *keys)
    run.wait_for_step(2)
    run.worker("actor_train").kill()
    assert run.wait(END_LIMIT_S) == 1, run.text
    assert re.search(r"actor_train rank [01] died", run.text), run.text
    run.assert_all_gone()


@pytest.mark.slow
def test_ctrl_c_saves_the_finished_step_and_exits_with_130(sort_data: Path, start_run: StartRun):
    run = start_run(sort_data, "tiny_sort", "max_steps=10000", "eval_steps=-1", "save_steps=-1")
    run.wait_for_step(2)
    run.process.send_signal(signal.SIGINT)
    assert run.wait(END_LIMIT_S) == 130, run.text
    (checkpoint,) = (run.output_dir / "checkpoints").glob("step_*")
    assert int(checkpoint.name.removeprefix("step_")) == max(run.metrics)
    run.assert_all_gone()


@pytest.mark.slow
def test_a_killed_driver_takes_its_workers_along(sort_data: Path, start_run: StartRun):
    run = start_run(sort_data, "tiny_sort", "max_steps=10000", "eval_steps=-1", "save_steps=-1")
    run.wait_for_step(1)
    run.process.kill()
    run.assert_all_gone(within_s=60)
