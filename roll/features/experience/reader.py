"""The trainer's side of a buffer: which groups a step trains on, each once, none lost, none too old.

A group is read when a step takes it, and released when a checkpoint holds what was learnt from it. In between, its
number is in the reader's state, which is in the checkpoint. So a trainer that is killed at any moment and goes on from
its last checkpoint trains on the same groups again, and on no others.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from roll.configs.sections.experience import ExperienceConfig, ReuseConfig
from roll.distributed.scheduler.rollout_core import StepGroups
from roll.errors import ConfigError, StorageError
from roll.features.experience.directory import DirectoryBuffer, Entry
from roll.run.interrupts import StepAbandoned
from roll.types.rollout import TrajectoryGroup

# Groups that are trained on more than once: when they come back, and which go first.
#
# The functions are those of Trinity-RFT's replay buffer (`priority_fn`), by their names there.


@dataclass(frozen=True)
class Use:
    """A group that was trained on `times`, last in step `step`, which ended at `ended` on the reader's clock."""

    entry: Entry
    times: int
    step: int
    ended: float


@dataclass(frozen=True)
class Reuse:
    """The rules of `experience.reuse`."""

    keys: ReuseConfig
    seed: int

    @property
    def limit(self) -> int:
        """Trainings of one group; 0: any number."""
        return self.keys.use_limit if self.keys.priority == "decay_limit_randomization" else 0

    def comes_back(self, use: Use) -> bool:
        """False if it is never trained on again, however young it is."""
        return not self.limit or use.times < self.limit

    def is_rested(self, use: Use, now: float) -> bool:
        return now - use.ended >= self.keys.cooldown_s

    def in_order(self, candidates: Sequence[tuple[Entry, int]], step: int) -> list[Entry]:
        """Entries with the times that they were trained on, the highest priority first; of equal ones the first in the
        data. A group that nothing sampled has version -1.

        Example: linear_decay with decay 2: version 5 after one training (3) comes behind version 4 after none (4).
        """
        priorities = [entry.oldest_version - self.keys.decay * times for entry, times in candidates]
        if self.keys.priority == "decay_limit_randomization" and self.keys.sigma:
            random = np.random.default_rng([self.seed, step])
            noise = random.normal(0.0, self.keys.sigma, len(candidates))
            priorities = [priority + more for priority, more in zip(priorities, noise.tolist(), strict=True)]
        ranked = sorted(zip(priorities, candidates, strict=True), key=lambda pair: (-pair[0], pair[1][0]))
        return [entry for _, (entry, _) in ranked]


logger = logging.getLogger(__name__)

_POLL_S = 0.2


@dataclass(frozen=True)
class Reading:
    """`num_groups` are trained on in a step; no token of them is more than `max_staleness` steps older than the weights
    that learn."""

    keys: ExperienceConfig
    num_groups: int
    max_staleness: int


@dataclass(frozen=True)
class Taken:
    """The groups of a step, and how many of them came late (of an earlier step of the explorer) or were trained on
    before; how many were too old, and are never trained on; and how many the step lacks."""

    groups: StepGroups
    late: int = 0
    reused: int = 0
    stale: int = 0
    missing: int = 0

    def metrics(self) -> dict[str, float]:
        return {
            "rollout/late_groups": float(self.late),
            "rollout/reused_groups": float(self.reused),
            "rollout/stale_groups": float(self.stale),
            "rollout/missing_groups": float(self.missing),
        }


class ExperienceReader:
    """`take` for each step in turn, `state` into each checkpoint, `saved` once it is whole."""

    def __init__(
        self,
        buffer: DirectoryBuffer,
        reading: Reading,
        reuse: Reuse | None = None,
        is_stopped: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.monotonic,
        wait: Callable[[float], None] = time.sleep,
    ):
        self._buffer, self._reading, self._reuse = buffer, reading, reuse
        self._is_stopped, self._clock, self._wait = is_stopped, clock, wait
        self._uses: dict[int, Use] = {}  # of groups that were taken and not released

    def state(self) -> dict[str, Any]:
        """State as JSON values: [number, step of the explorer, oldest version, times, step] of each group that was
        taken and not released."""
        return {
            "taken": [
                [use.entry.number, use.entry.step, use.entry.oldest_version, use.times, use.step]
                for _, use in sorted(self._uses.items())
            ]
        }

    def restore(self, state: Mapping[str, Any], steps_done: int) -> None:
        """Goes on where so many steps were done. Raises ConfigError where groups that are to be trained on are gone."""
        now = self._clock()
        uses = {
            number: Use(Entry(label, number, oldest_version=version), times, step, now)
            for number, label, version, times, step in state.get("taken", ())
        }
        gone = self._buffer.rewind(steps_done, {n for n, use in uses.items() if self._may_come_back(use, steps_done)})
        if gone:
            raise ConfigError(
                f"experience: {len(gone)} groups that steps after {steps_done} have trained on, or may train on, are "
                f"gone from the buffer, such as {gone[0]}: a later checkpoint was saved. Resume from that "
                "(resume_from_checkpoint: true), or start over with another experience.dir."
            )
        self._uses = uses

    def saved(self, steps_done: int) -> None:
        """The checkpoint of so many steps is whole: what no later step can train on is released."""
        over = {number: use.step for number, use in self._uses.items() if not self._may_come_back(use, steps_done)}
        self._buffer.release(over)
        self._uses = {number: use for number, use in self._uses.items() if number not in over}

    def take(self, step: int) -> Taken:
        """The groups of a step. Waits for them; raises StepGivenUp when the run is to end meanwhile, and StorageError
        where on_timeout is fail."""
        keys = self._reading.keys
        began = reported = self._clock()
        while True:
            is_whole = self._buffer.is_finished(step)  # before the entries: what was written before it is seen
            now = self._clock()
            is_late = 0 < keys.read_timeout_s <= now - reported
            selection = self._ready(step, now)
            if is_whole or selection.is_enough or (is_late and keys.on_timeout == "partial" and selection.chosen):
                return self._take(step, selection)
            if self._is_stopped():
                raise StepAbandoned
            if is_late:
                self._be_late(step, len(selection.chosen), now - began)
                reported = now
            self._wait(_POLL_S)

    def _be_late(self, step: int, num_there: int, seconds: float) -> None:
        there = f"{num_there} of {self._reading.num_groups} groups are there"
        if self._reading.keys.on_timeout == "fail":
            raise StorageError(
                f"step {step + 1}: {there} after {seconds:.0f} s (experience.read_timeout_s, on_timeout: fail). Is the "
                "explorer (mode: explore) running, with the same experience.dir?"
            )
        logger.warning("step %d waits for the explorer: %s after %.0f s", step + 1, there, seconds)

    def _ready(self, step: int, now: float) -> _ReadyGroups:
        """Return the groups that are ready for a step now."""
        there = [e for e in self._buffer.entries() if e.number not in self._uses and e.step <= step]
        stale = [entry for entry in there if self._is_stale(entry, step)]
        young = [entry for entry in there if not self._is_stale(entry, step)]
        fresh = [entry for entry in young if entry.is_kept]
        dropped = [entry for entry in young if not entry.is_kept]
        wanted = self._reading.num_groups
        is_late = any(entry.step < step for entry in fresh)
        if self._reuse is None:
            return _ReadyGroups(fresh[:wanted], dropped, stale, is_late and len(fresh) >= wanted)
        again = [
            (use.entry, use.times)
            for use in self._uses.values()
            if use.times and self._may_come_back(use, step) and self._reuse.is_rested(use, now)
        ]
        ranked = self._reuse.in_order([*((entry, 0) for entry in fresh), *again], step)
        return _ReadyGroups(ranked[:wanted], dropped, stale, len(ranked) >= wanted)

    def _take(self, step: int, selection: _ReadyGroups) -> Taken:
        chosen = sorted(selection.chosen)
        experiences = self._buffer.read([*chosen, *selection.dropped])
        groups: list[TrajectoryGroup] = [experience.group for experience in experiences]
        late = sum(entry.step < step and entry.number not in self._uses for entry in chosen)
        reused = sum(entry.number in self._uses for entry in chosen)
        now = self._clock()
        for entry in chosen:
            use = self._uses.get(entry.number, Use(entry, 0, step, now))
            self._uses[entry.number] = replace(use, times=use.times + 1, step=step, ended=now)
        self._uses |= {entry.number: Use(entry, 0, step, now) for entry in (*selection.dropped, *selection.stale)}
        if selection.stale:
            logger.warning(
                "step %d: %d groups are more than %d steps old (max_staleness) and are not trained on",
                step + 1,
                len(selection.stale),
                self._reading.max_staleness,
            )
        missing = max(0, self._reading.num_groups - len(chosen) - len(selection.dropped))
        return Taken(
            StepGroups(groups[: len(chosen)], groups[len(chosen) :]), late, reused, len(selection.stale), missing
        )

    def _may_come_back(self, use: Use, step: int) -> bool:
        """True if that step, or one after it, may train on a group again."""
        comes_back = self._reuse is not None and use.times > 0 and self._reuse.comes_back(use)
        return comes_back and not self._is_stale(use.entry, step)

    def _is_stale(self, entry: Entry, step: int) -> bool:
        return 0 <= entry.oldest_version < step - self._reading.max_staleness


@dataclass(frozen=True)
class _ReadyGroups:
    """`is_enough`: nobody needs to wait for more."""

    chosen: list[Entry]
    dropped: list[Entry]
    stale: list[Entry]
    is_enough: bool


# What the step asks for its groups where they are sampled elsewhere: a buffer in the place of a scheduler.


class ReadGroups:
    """The groups of a reader, as a step's source."""

    state_key = "experience"

    def __init__(self, reader: ExperienceReader, filters: bool):
        """`filters`: the explorer drops some groups."""
        self._reader = reader
        self.filters = filters
        self._metrics: dict[str, float] = {}

    def collect(self, step: int) -> StepGroups:
        taken = self._reader.take(step)
        self._metrics = taken.metrics()
        return taken.groups

    def rescore(self, groups: StepGroups, completed: Sequence[TrajectoryGroup], step: int) -> StepGroups:
        """Their rewards are there."""
        return groups

    def metrics(self) -> dict[str, float]:
        """Metrics of the step whose groups were collected last."""
        return self._metrics

    def save(self, directory: Path) -> dict[str, Any]:
        return {"data": {}, "experience": self._reader.state()}

    def restore(self, directory: Path, state: Mapping[str, Any] | None, step: int) -> int:
        self._reader.restore(state or {}, step)
        return 0

    def saved(self, steps_done: int) -> None:
        self._reader.saved(steps_done)

    def published(self, version: int) -> None:
        """Does nothing: no group waits for it."""
