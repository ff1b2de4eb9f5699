"""Faults by the hundred, drawn with a seed: `--faults=1000 --fault-seed=0`. The table of outcomes is printed and kept.

What is real and what is not: some two dozen of 1000 hit whole runs of their own, one each. Three quarters are borne by
one long run: its reward misbehaves in its own processes (raises, hangs, exits, is killed), and processes of it are
killed from outside. A fifth are damaged checkpoints, tried in this process by the code that resumes.
"""

from __future__ import annotations

import itertools
import os
import random
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

import pytest

from roll.errors import ConfigError
from roll.run.saving.checkpoint import CheckpointStore, DriverState, write_state
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
from tests.helpers.runs import END_LIMIT_S, REPOSITORY, Run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]
StartRun = Callable[..., Run]
FATAL_SHARE, OUTSIDE_SHARE, REWARD_SHARE = 0.024, 0.04, 0.736  # the rest: damaged checkpoints
KINDS = (*FAILS * 6, *HANGS * 2, *DIES)  # what costs a process is drawn less often
TARGETS = ("actor_train", "actor_infer", "rewards.sort", "cleaner", "driver", *RAYS)


@dataclass
class Table:
    """What was done, how often, and what became of it."""

    seed: int
    rows: Counter[tuple[str, str, str]] = field(default_factory=Counter)

    def add(self, where: str, what: str, became: str, count: int = 1) -> None:
        self.rows[where, what, became] += count

    def text(self) -> str:
        lines = [f"faults {self.rows.total()}, seed {self.seed}"]
        lines += [
            f"{count:5}  {where:22} {what:40} {became}" for (where, what, became), count in sorted(self.rows.items())
        ]
        return "\n".join(lines)


@pytest.fixture(scope="module")
def seed(pytestconfig: pytest.Config) -> int:
    return int(pytestconfig.getoption("fault_seed") or 0)


@pytest.fixture(scope="module")
def number(pytestconfig: pytest.Config) -> int:
    return int(pytestconfig.getoption("faults") or 0)


def capture_of(pytestconfig: pytest.Config) -> Any:
    return pytestconfig.pluginmanager.getplugin("capturemanager")


@pytest.fixture(scope="module")
def table(seed: int, pytestconfig: pytest.Config) -> Iterator[Table]:
    table = Table(seed)
    yield table
    path = REPOSITORY / "output" / f"faults_{seed}.txt"
    path.parent.mkdir(exist_ok=True)
    path.write_text(table.text() + "\n", encoding="utf-8")
    with capture_of(pytestconfig).global_and_fixture_disabled():
        sys.stdout.write(f"\n{table.text()}\n{path}\n")


def test_a_fault_that_a_run_cannot_bear_ends_it_with_its_cause(
    number: int, seed: int, table: Table, sort_data: Path, start_run: StartRun
) -> None:
    """Kill of every kind of process, in every phase: all of these in a random order."""
    chance = random.Random(f"{seed} whole runs")
    all_faults = [Fault(*drawn) for drawn in itertools.product(TARGETS, get_args(Phase))]
    chance.shuffle(all_faults)
    for index, fault in enumerate(itertools.islice(itertools.cycle(all_faults), round(number * FATAL_SHARE))):
        run = start_run(sort_data, "tiny_sort", *SMALL, *PHASES[fault.phase], name=f"fault-{index}")
        try:
            inject(run, fault, chance)
            table.add("a run of its own", f"kill {fault.target}, {fault.phase}", outcome(run, fault))
        except AssertionError as error:
            error.add_note(f"fault {index}: {fault}, --fault-seed={seed}")
            raise


def test_one_run_bears_hundreds_of_faults_and_loses_no_sample(
    number: int, seed: int, table: Table, tmp_path: Path, sort_data: Path, start_run: StartRun
) -> None:
    chance = random.Random(f"{seed} one run")
    tickets = tmp_path / "tickets"
    tickets.mkdir()
    kinds = chance.choices(KINDS, k=round(number * REWARD_SHARE))
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
    _harass(run, [_outside(chance) for _ in range(round(number * OUTSIDE_SHARE))], table, chance)
    _wait_for_progress(run, lambda: not list(tickets.glob("[0-9]*")))
    run.wait_for_step(max(run.metrics) + 3)
    run.process.send_signal(signal.SIGTERM)
    assert run.wait(END_LIMIT_S) == 143, run.text
    assert newest_checkpoint(run) == max(run.metrics)
    check(run)
    attempts = [row for step in recorded(run) for row in step]
    failed = Counter(str(row["extra"]["failure"]) for row in attempts if "failure" in row["extra"])
    assert 0 < failed.total() <= len(kinds) + number * OUTSIDE_SHARE
    assert all((row["reward"] is None) == ("failure" in row["extra"]) for row in attempts)
    for kind, count in Counter(kinds).items():
        table.add("a reward of one run", kind, "went on", count)
    (tmp_path / "failures.txt").write_text("\n".join(f"{count:5} {text}" for text, count in failed.most_common()))


def _outside(chance: random.Random) -> str:
    return chance.choices(("rewards.sort", "actor_infer", "cleaner"), weights=(8, 1, 1))[0]


def _harass(run: Run, faults: list[str], table: Table, chance: random.Random) -> None:
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
        table.add("from outside, one run", f"kill {target}", "went on" if process else "not there just then")
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


# --- checkpoints, in this process


def test_no_damaged_checkpoint_is_ever_taken(number: int, seed: int, table: Table, tmp_path: Path) -> None:
    """Up to all three of a store's checkpoints are damaged; the newest that is not is taken, or none."""
    chance = random.Random(f"{seed} checkpoints")
    whole = CheckpointStore(tmp_path / "whole")
    for step in (1, 2, 3):
        with whole.writing(step) as directory:
            for name in ("actor_train/weights", "actor_train/optimizer", "hf_model/model"):
                (directory / name).parent.mkdir(exist_ok=True)
                (directory / name).write_bytes(chance.randbytes(5000))
            write_state(directory, DriverState(steps_done=step, run={"cursor": step}))
    num_damaged = number - sum(round(number * share) for share in (FATAL_SHARE, OUTSIDE_SHARE, REWARD_SHARE))
    for index in range(num_damaged):
        store = CheckpointStore(tmp_path / "damaged")
        shutil.copytree(whole.directory, store.directory, symlinks=True)
        damage = chance.choice(DAMAGES)
        hit = set(chance.sample((1, 2, 3), k=chance.choice((1, 1, 2, 3))))
        for step in hit:
            damage(store.directory / f"step_{step:06d}", chance)
        expected = max({1, 2, 3} - hit, default=None)
        try:
            found = store.resolve(True)
            taken = None if found is None else found.state.steps_done
            assert found is None or found.state.run == {"cursor": taken}
        except ConfigError:
            taken = None
        assert taken == expected, f"checkpoint fault {index}: {damage.__name__} of {hit}, --fault-seed={seed}"
        became = "none taken" if expected is None else "the newest whole one taken"
        table.add("a checkpoint, in process", damage.__name__.removeprefix("_").replace("_", " "), became)
        shutil.rmtree(store.directory)


def _some_file(checkpoint: Path, chance: random.Random) -> Path:
    return chance.choice(sorted(path for path in checkpoint.rglob("*") if path.is_file()))


def _flipped_bit(checkpoint: Path, chance: random.Random) -> None:
    path = _some_file(checkpoint, chance)
    data = bytearray(path.read_bytes())
    data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    path.write_bytes(data)


def _cut_file(checkpoint: Path, chance: random.Random) -> None:
    path = _some_file(checkpoint, chance)
    os.truncate(path, chance.randrange(path.stat().st_size))


def _lost_file(checkpoint: Path, chance: random.Random) -> None:
    _some_file(checkpoint, chance).unlink()


def _directory_for_a_file(checkpoint: Path, chance: random.Random) -> None:
    path = _some_file(checkpoint, chance)
    path.unlink()
    path.mkdir()


def _link_to_itself(checkpoint: Path, chance: random.Random) -> None:
    path = _some_file(checkpoint, chance)
    path.unlink()
    path.symlink_to(path)


def _zeros(checkpoint: Path, chance: random.Random) -> None:
    path = _some_file(checkpoint, chance)
    path.write_bytes(bytes(path.stat().st_size))


def _manifest_of_another_shape(checkpoint: Path, chance: random.Random) -> None:
    texts = ("", "null", "[]", "3", "{}", '{"files": []}', "[" * 5000, '{"step": "x"}', "\ufffd")
    (checkpoint / "manifest.json").write_text(chance.choice(texts))


def _never_finished(checkpoint: Path, chance: random.Random) -> None:
    (checkpoint / "manifest.json").unlink()
    _lost_file(checkpoint, chance)


DAMAGES = (
    _flipped_bit,
    _cut_file,
    _lost_file,
    _directory_for_a_file,
    _link_to_itself,
    _zeros,
    _manifest_of_another_shape,
    _never_finished,
)
