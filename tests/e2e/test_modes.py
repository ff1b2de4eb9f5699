"""A run in parts: a checkpoint that is measured by itself; rollouts and training in processes of their own."""

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

    for name, checkpoint, step in (
        ("start", "false", 0),
        ("end", str(whole.output_dir / "checkpoints/step_000004"), 4),
    ):
        given = ("mode=bench", f"resume_from_checkpoint={checkpoint}")
        bench = beside(start_run(sort_data, "tiny_sort_eval", *given, name=name), "bench")
        assert bench.wait() == 0, bench.text
        of_run = {name: value for name, value in comparable(whole.metrics[step]).items() if name.startswith("val/")}
        of_bench = {name: value for name, value in comparable(bench.metrics[step]).items() if name.startswith("val/")}
        assert of_bench == of_run, f"step {step}"
        assert "actor_train" not in [process.environ().get("ROLL_ROLE") for process in bench.processes()]
        assert "val/sampled/pass_at_4" in bench.text
        bench.assert_all_gone()


SETTINGS = ("max_steps=6", "eval_steps=3", "save_steps=2", "rollout_batch_size=16")
SETTINGS += ("actor_train.training_args.gradient_accumulation_steps=2",)


def sampled_and_learnt(row: dict[str, float]) -> dict[str, float]:
    """Not what engines say of themselves: the trainer has none."""
    owners, of_engines = ("actor/", "rollout/", "train_infer/"), "rollout/recomputed_tokens"
    return {name: row[name] for name in comparable(row) if name.startswith(owners) and name != of_engines}


def killed(run: Run) -> None:
    run.process.kill()
    run.process.wait()
    run.assert_all_gone()


@pytest.mark.slow
@pytest.mark.parametrize("storage", ["queue", "sql"])
def test_two_processes_that_are_killed_on_the_way_give_what_one_process_gives(
    storage: str, sort_data: Path, start_run: StartRun
):
    """Explorer and trainer in processes of their own, each killed once and started again, beside the whole run in one.
    The same seed, engine and trainer: what every step is sampled as, and what it learns, must be equal to the last bit,
    so each group was trained on once, in its step, and none was lost."""
    one = start_run(sort_data, "tiny_sort", *SETTINGS, name="one")
    assert one.wait() == 0, one.text
    one.assert_all_gone()

    shared = (*SETTINGS, f"experience.storage_type={storage}", f"experience.dir={one.output_dir.parent}/experience")
    trainer_keys = ("mode=train", "resume_from_checkpoint=true")
    trainer = start_run(sort_data, "tiny_sort", *shared, *trainer_keys, name="trainer")
    explorer = beside(start_run(sort_data, "tiny_sort", *shared, "mode=explore", name="explorer"), "explore")
    explorer.wait_for_step(2)
    killed(explorer)
    explorer = beside(start_run(sort_data, "tiny_sort", *shared, "mode=explore", name="explorer"), "explore")
    trainer.wait_for_step(3)
    killed(trainer)
    trainer = start_run(sort_data, "tiny_sort", *shared, *trainer_keys, name="trainer")
    assert trainer.wait() == 0, trainer.text
    assert explorer.wait() == 0, explorer.text
    assert "taking up the checkpoint of step 2" in trainer.text
    assert "steps that are in the buffer" in explorer.text

    for step in range(1, 7):
        whole, learnt = sampled_and_learnt(one.metrics[step]), sampled_and_learnt(trainer.metrics[step])
        assert {name: learnt.get(name) for name in whole} == whole, f"step {step}"
        assert learnt["rollout/stale_groups"] == learnt["rollout/missing_groups"] == 0
    for step in (3, 6):
        assert explorer.metrics[step]["val/reward_mean"] == one.metrics[step]["val/reward_mean"], f"step {step}"
    explorer.assert_all_gone()
    trainer.assert_all_gone()


@pytest.mark.slow
def test_a_trainer_without_its_explorer_says_what_it_waits_for_and_ends_as_it_is_told(
    sort_data: Path, start_run: StartRun
):
    keys = ("mode=train", "experience.read_timeout_s=1", "experience.on_timeout=fail")
    run = start_run(sort_data, "tiny_sort", *SETTINGS, *keys)
    assert run.wait() == 1, run.text
    assert "0 of 16 groups are there" in run.text and "Is the explorer (mode: explore) under way" in run.text
    run.assert_all_gone()
