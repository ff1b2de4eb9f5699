"""Faults by the hundred, drawn with a seed: `--faults=1000 --fault-seed=0`.

One in forty hits a whole run of its own. The others are borne by one long run: its reward misbehaves in its own
processes (raises, hangs, exits, is killed), and processes of it are killed from outside.
"""

from __future__ import annotations

import itertools
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import pytest

from tests.e2e.faults import (
    PHASES,
    RAYS,
    SMALL,
    Fault,
    Phase,
    check,
    inject,
    newest_checkpoint,
    outcome,
    process_of,
    recorded,
)
from tests.e2e.faulty_rewards import DIES, FAILS, HANGS
from tests.helpers.runs import END_LIMIT_S, Run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]
StartRun = Callable[..., Run]
FATAL_SHARE, OUTSIDE_SHARE = 0.024, 0.04
KINDS = (*FAILS * 6, *HANGS * 2, *DIES)  # what costs a process is drawn less often
TARGETS = ("actor_train", "actor_infer", "rewards.sort", "cleaner", "driver", *RAYS)


@pytest.fixture(scope="module")
def seed(pytestconfig: pytest.Config) -> int:
    return int(pytestconfig.getoption("fault_seed") or 0)


@pytest.fixture(scope="module")
def number(pytestconfig: pytest.Config) -> int:
    return int(pytestconfig.getoption("faults") or 0)


def test_a_fault_that_a_run_cannot_bear_ends_it_with_its_cause(
    number: int, seed: int, sort_data: Path, start_run: StartRun
) -> None:
    """Kill of every kind of process, in every phase: all of these in a random order."""
    chance = random.Random(f"{seed} whole runs")
    all_faults = [Fault(*drawn) for drawn in itertools.product(TARGETS, get_args(Phase))]
    chance.shuffle(all_faults)
    for index, fault in enumerate(itertools.islice(itertools.cycle(all_faults), round(number * FATAL_SHARE))):
        run = start_run(sort_data, "tiny_sort", *SMALL, *PHASES[fault.phase], name=f"fault-{index}")
        try:
            inject(run, fault, chance)
            outcome(run, fault)
        except AssertionError as error:
            error.add_note(f"fault {index}: {fault}, --fault-seed={seed}")
            raise


def test_one_run_bears_hundreds_of_faults_and_loses_no_sample(
    number: int, seed: int, tmp_path: Path, sort_data: Path, start_run: StartRun
) -> None:
    chance = random.Random(f"{seed} one run")
    tickets = tmp_path / "tickets"
    tickets.mkdir()
    kinds = chance.choices(KINDS, k=round(number * (1 - FATAL_SHARE - OUTSIDE_SHARE)))
    for index, kind in enumerate(kinds):
        (tickets / f"{index:06d}-{kind}").touch()
    rewards = ("rewards.sort.reward=tests.e2e.faulty_rewards:faulty", "~rewards.sort.reward_args.pattern")
    run = start_run(
        sort_data,
        "tiny_sort",
        *SMALL,
        *PHASES["steps"],
        *rewards,
        f"rewards.sort.reward_args={{tickets: {tickets}, share: 0.2}}",
        "rewards.sort.world_size=2",
        "rewards.sort.timeout_s=1",
        "max_failed_fraction=1",
        "num_gpus_per_node=3",
        "actor_infer.device_mapping=[1,2]",
    )
    _harass(run, [_outside(chance) for _ in range(round(number * OUTSIDE_SHARE))], chance)
    _wait_for_progress(run, lambda: not list(tickets.glob("[0-9]*")))
    run.wait_for_step(max(run.metrics) + 3)
    run.process.send_signal(signal.SIGTERM)
    assert run.wait(END_LIMIT_S) == 143, run.text
    assert newest_checkpoint(run) == max(run.metrics)
    check(run)
    attempts = [row for step in recorded(run) for row in step]
    failed = [row for row in attempts if "failure" in row["extra"]]
    assert 0 < len(failed) <= len(kinds) + number * OUTSIDE_SHARE
    assert all((row["reward"] is None) == ("failure" in row["extra"]) for row in attempts)


def _outside(chance: random.Random) -> str:
    return chance.choices(("rewards.sort", "actor_infer", "cleaner"), weights=(8, 1, 1))[0]


def _harass(run: Run, faults: list[str], chance: random.Random) -> None:
    """One after the other, while the run goes on: at most as many as the run may have replaced."""
    left = Counter({"rewards.sort": 10**6, "actor_infer": 3, "cleaner": 1})
    run.wait_for_step(1)
    for target in faults:
        target = target if left[target] else "rewards.sort"
        left[target] -= 1
        time.sleep(chance.random())
        process = process_of(run, target)
        if process is not None:  # else it is being replaced just now
            process.kill()
        _wait_for_progress(run, lambda: run.text.count("was restarted in") >= 3 - left["actor_infer"])
        run.wait_for_step(max(run.metrics) + 2)


def _wait_for_progress(run: Run, condition: Callable[[], bool], patience_s: float = 240.0) -> None:
    """Fails when the run ends, or makes no step for long."""
    newest, deadline = -1, 0.0
    while not condition():
        assert run.process.poll() is None, f"the run ended:\n{run.text}"
        if max(run.metrics) > newest:
            newest, deadline = max(run.metrics), time.monotonic() + patience_s
        assert time.monotonic() < deadline, f"no step for {patience_s} s:\n{run.text}"
        time.sleep(0.2)
