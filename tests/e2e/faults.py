"""Faults of whole runs: processes killed at a moment, and what must hold afterwards, whatever happened."""

from __future__ import annotations

import json
import random
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

import psutil

from roll.run.saving.manifest import check_digests, read_manifest
from tests.helpers.process_table import command_of, name_of
from tests.helpers.runs import END_LIMIT_S, START_LIMIT_S, Run

Phase = Literal["start-up", "steps", "evaluation", "checkpoint"]

SMALL = (
    "rollout_batch_size=4",
    "num_return_sequences_in_group=4",
    "actor_train.training_args.per_device_train_batch_size=16",
    "actor_train.training_args.gradient_accumulation_steps=1",
    "max_steps=100000",
)
"""Steps of a tenth of a second, all of whose rollouts are recorded."""
PHASES: dict[Phase, tuple[str, ...]] = {
    "start-up": ("eval_steps=-1", "save_steps=-1"),
    "steps": ("eval_steps=-1", "save_steps=-1"),
    "evaluation": ("eval_steps=1", "save_steps=-1"),  # of 512 answers: nearly all of the time
    "checkpoint": ("eval_steps=-1", "save_steps=1", "max_ckpt_to_keep=2"),
}
WORKERS = ("actor_train", "actor_infer", "critic", "reference")
RAYS = ("raylet", "gcs_server")


@dataclass(frozen=True)
class Fault:
    target: str
    phase: Phase

    def __str__(self) -> str:
        return f"kill {self.target} in {self.phase}"

    @property
    def said(self) -> str | None:
        """What the run says if it ends with 1."""
        if self.target in RAYS:
            return f"Ray's {self.target} on this host died"
        if self.target in (*WORKERS, "rewards.sort"):
            return f"{self.target} rank 0 died"
        return None

    @property
    def is_fatal(self) -> bool | None:
        """None, at the start: the run replaces a reward worker, and an engine once it is set up; it may have been
        later."""
        if self.target in ("rewards.sort", "actor_infer"):
            return None if self.phase == "start-up" else False
        return self.target in (*WORKERS, *RAYS)


def process_of(run: Run, target: str) -> psutil.Process | None:
    if target == "driver":
        return psutil.Process(run.process.pid)
    if target in RAYS:
        return next((p for p in run.processes() if name_of(p) == target), None)
    if target == "cleaner":
        return next((p for p in run.processes() if any("cleaner.py" in part for part in command_of(p))), None)
    return next((p for p in run.processes(ROLL_ROLE=target) if name_of(p).startswith("ray::")), None)


def inject(run: Run, fault: Fault, chance: random.Random) -> None:
    """Waits for the moment, then kills."""
    if fault.phase == "start-up":
        awaited = "actor_train" if fault.target in (*RAYS, "driver") else fault.target  # until then Ray itself starts
        _wait_until(run, lambda: process_of(run, awaited) is not None)
        time.sleep(chance.random())
    elif fault.phase == "checkpoint":
        run.wait_for_step(2)
        _wait_until(run, lambda: any((run.output_dir / "checkpoints").glob(".step_*.partial-*")), every_s=0.001)
    else:
        run.wait_for_step(2)
        time.sleep(chance.random())
    process = process_of(run, fault.target)
    assert process is not None, run.text
    process.kill()


def outcome(run: Run, fault: Fault) -> str:
    """In a word, what became of the run; it has ended then. Fails where it is not what must be."""
    if fault.target == "driver":
        assert run.wait(END_LIMIT_S) == -signal.SIGKILL
        check(run, killed=True)
        return "killed"
    ended = fault.is_fatal
    if ended is None:
        _wait(lambda: run.process.poll() is not None or bool(run.metrics), "no step, no end", START_LIMIT_S)
        ended = run.process.poll() is not None
    if ended:
        assert fault.said is not None
        assert run.wait(END_LIMIT_S) == 1, run.text
        assert fault.said in run.text, run.text
        check(run)
        return "ended with its cause"
    if fault.phase == "start-up":
        run.wait_for_step(1)
    newest = max(run.metrics)
    run.wait_for_step(newest + 3)
    run.process.send_signal(signal.SIGTERM)
    assert run.wait(END_LIMIT_S) == 143, run.text
    check(run)
    assert newest_checkpoint(run) == max(run.metrics)
    return "went on"


def check(run: Run, killed: bool = False) -> None:
    """What holds at the end of every run. `killed`: the driver, which could tidy up nothing."""
    assert "Traceback (most recent call last)" not in run.text, run.text
    run.assert_all_gone(within_s=60)
    _wait(lambda: not list(run.temporary.glob("roll-*")), f"left in {run.temporary}")
    for path in (run.output_dir / "checkpoints").glob("step_*"):
        check_digests(path, read_manifest(path))
    if not killed:
        assert not list((run.output_dir / "checkpoints").glob(".step_*")), "half a checkpoint is left"
    check_samples(run)


def check_samples(run: Run) -> None:
    """Every step is there once, and every group of every step, with all its attempts: none lost, none twice."""
    metrics = run.output_dir / "logs" / "metrics.jsonl"
    lines = metrics.read_text().splitlines() if metrics.exists() else []
    steps = [step for line in lines if (step := json.loads(line)["step"]) > 0]
    assert steps == list(range(1, len(steps) + 1))
    for number, found in enumerate(recorded(run)[: len(steps)]):
        groups = sorted(row["group_id"] for row in found)
        assert groups == sorted(4 * list(range(4 * number, 4 * number + 4))), f"step {number + 1}"


def recorded(run: Run) -> list[list[dict[str, Any]]]:
    """The attempts of every step."""
    files = [path for path in (run.output_dir / "rollouts").glob("step_*.jsonl") if ".val" not in path.name]
    return [[json.loads(line) for line in path.read_text().splitlines()] for path in sorted(files)]


def newest_checkpoint(run: Run) -> int:
    return max(int(path.name.removeprefix("step_")) for path in (run.output_dir / "checkpoints").glob("step_*"))


def _wait_until(run: Run, condition: Callable[[], bool], every_s: float = 0.05) -> None:
    def met() -> bool:
        assert run.process.poll() is None, f"the run ended early:\n{run.text}"
        with suppress(psutil.NoSuchProcess):
            return condition()
        return False

    _wait(met, "what the fault waits for did not come", START_LIMIT_S, every_s)


def _wait(condition: Callable[[], bool], failure: str, within_s: float = 60.0, every_s: float = 0.05) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, failure
        time.sleep(every_s)
