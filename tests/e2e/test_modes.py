"""A run in parts: a checkpoint that is measured by itself; rollouts and training in processes of their own."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.helpers.runs import END_LIMIT_S, START_LIMIT_S, Run, comparable

StartRun = Callable[..., Run]


def beside(run: Run, mode: str) -> Run:
    """The same with the place of its files: a process beside a run writes below it."""
    run.output_dir = run.output_dir / mode
    return run


@pytest.mark.slow
def test_a_checkpoint_measured_by_itself_has_the_figures_of_its_run(sort_data: Path, start_run: StartRun):
    whole = start_run(
        sort_data, "tiny_sort_eval", "max_steps=4", "eval_steps=4", "save_steps=4", name="whole"
    ).finished()
    names = {"val/greedy/reward_mean", "val/sampled/reward_mean", "val/sampled/pass_at_4", "val/reward_mean"}
    assert names < whole.metrics[4].keys()

    for name, checkpoint, step in (
        ("start", "false", 0),
        ("end", str(whole.output_dir / "checkpoints/step_000004"), 4),
    ):
        given = ("mode=bench", f"resume_from_checkpoint={checkpoint}")
        bench = beside(start_run(sort_data, "tiny_sort_eval", *given, name=name), "bench").finished()
        of_run = {name: value for name, value in comparable(whole.metrics[step]).items() if name.startswith("val/")}
        of_bench = {name: value for name, value in comparable(bench.metrics[step]).items() if name.startswith("val/")}
        assert of_bench == of_run, f"step {step}"
        assert "actor_train" not in [process.environ().get("ROLL_ROLE") for process in bench.processes()]
        assert "val/sampled/pass_at_4" in bench.text


SETTINGS = ("max_steps=6", "eval_steps=3", "save_steps=2", "rollout_batch_size=16")
SETTINGS += ("actor_train.training_args.gradient_accumulation_steps=2",)


def sampled_and_learnt(row: dict[str, float]) -> dict[str, float]:
    """Not what engines say of themselves: the trainer has none."""
    owners = ("actor/", "rollout/", "train_infer/")
    of_engines = {f"rollout/{name}" for name in ("recomputed_tokens", "restarted_engines", "retried_requests")}
    return {name: row[name] for name in comparable(row) if name.startswith(owners) and name not in of_engines}


def killed(run: Run) -> None:
    run.process.kill()
    run.process.wait()
    run.assert_all_gone()


@pytest.mark.slow
def test_two_processes_that_are_killed_on_the_way_give_what_one_process_gives(sort_data: Path, start_run: StartRun):
    """Explorer and trainer in processes of their own, each killed once and started again, beside the whole run in one.
    The same seed, engine and trainer: what every step is sampled as, and what it learns, must be equal to the last bit,
    so each group was trained on once, in its step, and none was lost."""
    one = start_run(sort_data, "tiny_sort", *SETTINGS, name="one").finished()

    shared = (*SETTINGS, f"experience.dir={one.output_dir.parent}/experience")
    trainer_keys = ("mode=train", "resume_from_checkpoint=true")
    trainer = start_run(sort_data, "tiny_sort", *shared, *trainer_keys, name="trainer")
    explorer = beside(start_run(sort_data, "tiny_sort", *shared, "mode=explore", name="explorer"), "explore")
    explorer.wait_for_step(2)
    killed(explorer)
    explorer = beside(start_run(sort_data, "tiny_sort", *shared, "mode=explore", name="explorer"), "explore")
    trainer.wait_for_step(3)
    killed(trainer)
    trainer = start_run(sort_data, "tiny_sort", *shared, *trainer_keys, name="trainer").finished()
    explorer.finished()
    assert "resuming from the checkpoint of step 2" in trainer.text
    assert "steps that are in the buffer" in explorer.text

    for step in range(1, 7):
        whole, learnt = sampled_and_learnt(one.metrics[step]), sampled_and_learnt(trainer.metrics[step])
        assert {name: learnt.get(name) for name in whole} == whole, f"step {step}"
        assert learnt["rollout/stale_groups"] == learnt["rollout/missing_groups"] == 0
    for step in (3, 6):
        assert explorer.metrics[step]["val/reward_mean"] == one.metrics[step]["val/reward_mean"], f"step {step}"


@pytest.mark.slow
def test_rollouts_that_run_ahead_of_another_process_are_no_older_than_they_may_be(
    sort_data: Path, start_run: StartRun, tmp_path: Path
):
    """A step's worth of groups is under way while another process trains: what it trains on may be one step older than
    its weights, and no more."""
    shared = (*SETTINGS, "max_staleness=1", f"experience.dir={tmp_path}/experience")
    explorer = beside(start_run(sort_data, "tiny_sort_async", *shared, "mode=explore", name="explorer"), "explore")
    trainer = start_run(sort_data, "tiny_sort_async", *shared, "mode=train", name="trainer").finished()
    explorer.finished()
    rows = [trainer.metrics[step] for step in range(1, 7)]
    assert max(row["rollout/staleness_max"] for row in rows) == 1
    assert {row["rollout/missing_groups"] + row["rollout/stale_groups"] for row in rows} == {0}
    assert not list((tmp_path / "experience" / "groups").iterdir()), "all were trained on, and saved"


@pytest.mark.slow
def test_groups_may_be_trained_on_again_in_another_process(sort_data: Path, start_run: StartRun, tmp_path: Path):
    """Where they come back at once, a step is of fresh groups and of those that were used; none too old, none thrice
    as long as there are others."""
    again = "experience.reuse={enable: true, cooldown_s: 0, priority: decay_limit_randomization, use_limit: 2}"
    shared = (*SETTINGS, "max_staleness=4", f"experience.dir={tmp_path}/experience")
    explorer = beside(
        start_run(sort_data, "tiny_sort_async", *shared, again, "mode=explore", name="explorer"), "explore"
    )
    trainer = start_run(sort_data, "tiny_sort_async", *shared, again, "mode=train", name="trainer").finished()
    explorer.finished()
    rows = [trainer.metrics[step] for step in range(1, 7)]
    assert sum(row["rollout/reused_groups"] for row in rows) > 0
    assert max(row["rollout/staleness_max"] for row in rows) <= 4
    assert all(row["rollout/missing_groups"] == 0 for row in rows)


@pytest.mark.slow
def test_operators_of_two_processes_give_what_one_process_gives(sort_data: Path, start_run: StartRun, tmp_path: Path):
    """Rows are chosen by the explorer; the groups' operators have the moments of one process, whoever has them."""
    keys = ("max_steps=3", "eval_steps=3", "save_steps=3")
    one = start_run(sort_data, "tiny_sort_operators", *keys, name="one").finished()
    shared = (*keys, f"experience.dir={tmp_path}/experience")
    explorer = beside(start_run(sort_data, "tiny_sort_operators", *shared, "mode=explore", name="explorer"), "explore")
    trainer = start_run(sort_data, "tiny_sort_operators", *shared, "mode=train", name="trainer").finished()
    explorer.finished()
    for step in range(1, 4):
        whole, learnt = sampled_and_learnt(one.metrics[step]), sampled_and_learnt(trainer.metrics[step])
        assert {name: learnt.get(name) for name in whole} == whole, f"step {step}"
    assert explorer.metrics[3]["val/reward_mean"] == one.metrics[3]["val/reward_mean"]


@pytest.mark.slow
def test_episodes_are_played_by_one_process_and_trained_on_by_another(lake_data: Path, start_run: StartRun):
    keys = ("max_steps=2", "eval_steps=2", "save_steps=2")
    lake = {"example": "tiny-frozen-lake", "pipeline": "agentic"}
    one = start_run(lake_data, "tiny_frozen_lake", *keys, name="one", **lake).finished()
    shared = (*keys, f"experience.dir={one.output_dir.parent}/experience")
    explorer = beside(start_run(lake_data, "tiny_frozen_lake", *shared, "mode=explore", name="e", **lake), "explore")
    trainer = start_run(lake_data, "tiny_frozen_lake", *shared, "mode=train", name="t", **lake).finished()
    explorer.finished()
    for step in (1, 2):
        learnt = {name: value for name, value in comparable(one.metrics[step]).items() if name.startswith("actor/")}
        assert {name: trainer.metrics[step].get(name) for name in learnt} == learnt, f"step {step}"
    assert explorer.metrics[2]["val/success_mean"] == one.metrics[2]["val/success_mean"]
    checkpoint = one.output_dir / "checkpoints" / "step_000002"
    measured = ("mode=bench", f"resume_from_checkpoint={checkpoint}")
    bench = beside(start_run(lake_data, "tiny_frozen_lake", *measured, name="b", **lake), "bench").finished()
    assert bench.metrics[2]["val/success_mean"] == one.metrics[2]["val/success_mean"]


@pytest.mark.slow
def test_a_trainer_without_its_explorer_says_what_it_waits_for_and_ends_as_it_is_told(
    sort_data: Path, start_run: StartRun
):
    keys = ("mode=train", "experience.read_timeout_s=1", "experience.on_timeout=fail")
    run = start_run(sort_data, "tiny_sort", *SETTINGS, *keys)
    assert run.wait() == 1, run.text
    assert "0 of 16 groups are there" in run.text and "Is the explorer (mode: explore) running" in run.text
    run.assert_all_gone()


@pytest.mark.slow
def test_an_explorer_that_waits_for_its_trainer_ends_as_soon_as_it_is_told(
    sort_data: Path, start_run: StartRun, tmp_path: Path
):
    keys = ("mode=explore", f"experience.dir={tmp_path}/experience", "eval_steps=-1")
    run = start_run(sort_data, "tiny_sort", *SETTINGS, *keys)
    deadline = time.monotonic() + START_LIMIT_S
    while not (tmp_path / "experience" / "steps" / "000000.json").exists():
        assert run.process.poll() is None and time.monotonic() < deadline, run.text
        time.sleep(0.1)
    run.process.send_signal(signal.SIGTERM)
    assert run.wait(END_LIMIT_S) == 143, run.text
    assert "Traceback" not in run.text
    assert len(list((tmp_path / "experience" / "groups").iterdir())) == 16
    run.assert_all_gone()
