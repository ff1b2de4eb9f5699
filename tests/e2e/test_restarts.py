"""`roll run --max_restarts`: a run that is killed goes on by itself."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.helpers.runs import START_LIMIT_S, Run, comparable

LENGTHS = ("max_steps=8", "save_steps=2", "eval_steps=4", "resume_from_checkpoint=false")


def kill_driver(run: Run) -> None:
    (driver,) = psutil.Process(run.process.pid).children()
    with suppress(psutil.NoSuchProcess):
        driver.kill()


@pytest.mark.slow
def test_a_run_killed_twice_under_a_supervisor_ends_with_the_figures_of_an_unbroken_one(
    sort_data: Path, start_run: Callable[..., Run]
) -> None:
    """Though its YAML says to start afresh: what it goes on from is its own."""
    unbroken = start_run(sort_data, "tiny_sort", *LENGTHS, name="unbroken")
    assert unbroken.wait(2 * START_LIMIT_S) == 0, unbroken.text
    run = start_run(sort_data, "tiny_sort", *LENGTHS, name="killed", max_restarts=1)
    for step in (3, 5):
        run.wait_for_step(step)
        kill_driver(run)
    assert run.wait(3 * START_LIMIT_S) == 0, run.text
    assert run.text.count("the run ended with exit code 137 (SIGKILL). It starts again in 5 s, from step_") == 2
    assert run.metrics.keys() == unbroken.metrics.keys()
    for step, row in unbroken.metrics.items():
        assert comparable(run.metrics[step]) == comparable(row), f"step {step}"
    run.assert_all_gone()
