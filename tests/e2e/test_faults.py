"""Faults that runs must bear, or end of as they should: each with the invariants of `faults.check`."""

from __future__ import annotations

import os
import random
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from roll.run.saving.checkpoint import CheckpointStore
from tests.e2e.faults import PHASES, SMALL, Fault, check, inject, newest_checkpoint, outcome, process_of
from tests.helpers.runs import END_LIMIT_S, Run

StartRun = Callable[..., Run]
NO_SAVES = PHASES["steps"]


@pytest.mark.slow
def test_sigterm_saves_the_finished_step_though_cleaner_and_reward_worker_were_killed(
    sort_data: Path, start_run: StartRun
):
    """Three faults in one run: what can be replaced is, and a cluster's SIGTERM is as good as Ctrl-C."""
    run = start_run(sort_data, "tiny_sort", *SMALL, *NO_SAVES)
    for target in ("cleaner", "rewards.sort"):
        run.wait_for_step(max(run.metrics, default=0) + 2)
        process = process_of(run, target)
        assert process is not None
        process.kill()
    run.wait_for_step(max(run.metrics) + 5)
    run.process.send_signal(signal.SIGTERM)
    assert run.wait(END_LIMIT_S) == 143, run.text
    assert "rewards.sort rank 0 is replaced by a new worker" in run.text
    assert newest_checkpoint(run) == max(run.metrics)
    check(run)


@pytest.mark.slow
def test_a_run_whose_ray_dies_says_so_and_keeps_what_its_workers_printed(sort_data: Path, start_run: StartRun):
    """Also where Ray's own code ends the driver before it can do anything more."""
    reward = ("rewards.sort.reward=tests.e2e.faulty_rewards:talkative", "~rewards.sort.reward_args.pattern")
    run = start_run(sort_data, "tiny_sort", *SMALL, *NO_SAVES, *reward)
    fault = Fault("raylet", "steps")
    inject(run, fault, random.Random(0))
    assert outcome(run, fault) == "ended with its cause"
    assert "an answer was judged" in (run.output_dir / "logs" / "workers" / "rewards.sort-0.out").read_text()


@pytest.mark.slow
def test_sigterm_to_the_process_group_of_a_run_saves_the_finished_step(sort_data: Path, start_run: StartRun):
    """As `timeout` sends it: Ray's own processes are in other groups, and live until the step is saved."""
    run = start_run(sort_data, "tiny_sort", *SMALL, *NO_SAVES)
    run.wait_for_step(2)
    os.killpg(run.process.pid, signal.SIGTERM)
    assert run.wait(END_LIMIT_S) == 143, run.text
    assert newest_checkpoint(run) == max(run.metrics)
    check(run)


@pytest.mark.slow
def test_sigterm_to_all_processes_of_a_job_ends_it_in_time(sort_data: Path, start_run: StartRun):
    """As a scheduler sends it: Ray's own processes end by the same signal."""
    run = start_run(sort_data, "tiny_sort", *SMALL, *NO_SAVES)
    run.wait_for_step(2)
    for process in run.processes():
        with suppress(psutil.NoSuchProcess):
            process.terminate()
    assert run.wait(END_LIMIT_S) == 143, run.text
    check(run)


@pytest.mark.slow
def test_sigterm_while_ray_starts_ends_the_run_at_once(sort_data: Path, start_run: StartRun):
    run = start_run(sort_data, "tiny_sort", *SMALL, *NO_SAVES)
    while process_of(run, "gcs_server") is None:
        assert run.process.poll() is None, run.text
    run.process.send_signal(signal.SIGTERM)
    assert run.wait(END_LIMIT_S) == 143, run.text
    check(run)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Room for one checkpoint of the demo, not for two."""
    directory = tmp_path / "disk"
    directory.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=5m", "none", str(directory)], capture_output=True)
    if mounted.returncode:
        pytest.skip("only root may mount a small disk")
    yield directory
    subprocess.run(["umount", "-l", str(directory)], check=True)


@pytest.mark.slow
def test_a_full_disk_is_named_and_the_checkpoint_before_stays(small_disk: Path, sort_data: Path, start_run: StartRun):
    run = start_run(
        sort_data, "tiny_sort", *SMALL, "eval_steps=-1", "save_steps=1", f"checkpoint_config.output_dir={small_disk}"
    )
    assert run.wait() == 1, run.text
    assert "no space left in " in run.text
    assert str(small_disk) in run.text
    kept = CheckpointStore(small_disk).resolve(True)
    assert kept is not None
    assert kept.state.steps_done == max(run.metrics)
    check(run)
