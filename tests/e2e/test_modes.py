"""A run in parts: a checkpoint that is measured by itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.conftest import Run, comparable

StartRun = Callable[..., Run]


def beside(run: Run, mode: str) -> Run:
    """The same with the place of its files: a process beside a run writes below it."""
    run.output_dir = run.output_dir / mode
    return run


@pytest.mark.slow
def test_a_checkpoint_measured_by_itself_has_the_figures_of_its_run(sort_data: Path, start_run: StartRun):
    whole = start_run(sort_data, "tiny_sort_eval", "max_steps=4", "eval_steps=4", "save_steps=4", name="whole")
    assert whole.wait() == 0, whole.text
    names = {"val/greedy/reward_mean", "val/sampled/reward_mean", "val/sampled/pass_at_4", "val/reward_mean"}
    assert names < whole.metrics[4].keys()

    for name, checkpoint, step in (("start", "false", 0), ("end", str(whole.output_dir / "checkpoints/step_000004"), 4)):
        given = ("mode=bench", f"resume_from_checkpoint={checkpoint}")
        bench = beside(start_run(sort_data, "tiny_sort_eval", *given, name=name), "bench")
        assert bench.wait() == 0, bench.text
        of_run = {name: value for name, value in comparable(whole.metrics[step]).items() if name.startswith("val/")}
        of_bench = {name: value for name, value in comparable(bench.metrics[step]).items() if name.startswith("val/")}
        assert of_bench == of_run, f"step {step}"
        assert "actor_train" not in [process.environ().get("ROLL_ROLE") for process in bench.processes()]
        assert "val/sampled/pass_at_4" in bench.text
        bench.assert_all_gone()
