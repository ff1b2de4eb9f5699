"""Explorer and trainer under drawn schedules, each killed at drawn points of what it does on the disk: what the
surviving line of checkpoints has trained on is what one process trains on, each group once and none lost."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from roll.configs.sections.experience import ExperienceConfig
from roll.features.experience.directory import DirectoryBuffer
from roll.features.experience.explorer import Explorer, Progress
from roll.features.experience.reader import ExperienceReader, Reading
from roll.run.interrupts import StepAbandoned
from tests.unit.features.experience.made import experience

NUM_STEPS, NUM_GROUPS, AHEAD = 4, 2, 2


class Killed(Exception):
    """The process is gone."""


@dataclass
class Death:
    """Comes so many moments from now, between what is done on the disk."""

    left: int | None = None

    def comes(self) -> None:
        if self.left is not None:
            self.left -= 1
            if self.left == 0:
                raise Killed


class MortalDirectory(DirectoryBuffer):
    def __init__(self, directory: Path, death: Death):
        self._death = death
        super().__init__(directory)

    def _stage(self, path: Path, content: bytes) -> None:
        super()._stage(path, content)
        self._death.comes()

    def _rename(self, staged: Path, path: Path) -> None:
        self._death.comes()
        super()._rename(staged, path)
        self._death.comes()


@dataclass
class Both:
    """A trainer with its newest checkpoint, and explorers; either begins anew after it was killed."""

    open_buffer: Callable[[Death], DirectoryBuffer]
    draw_numbers: Callable[[list[int]], Sequence[int]]
    is_in_order: bool
    trained: list[list[int]] = field(default_factory=list)  # by step, in this line of checkpoints
    saved: tuple[list[list[int]], dict[str, Any]] = field(default_factory=lambda: ([], {}))
    newest_version: int = 0

    def __post_init__(self) -> None:
        self.start_trainer()

    def start_trainer(self) -> None:
        self.death = Death()
        keys = ExperienceConfig.model_validate({"read_timeout_s": 0.0})
        reading = Reading(keys, NUM_GROUPS, max_staleness=1)
        self.reader = ExperienceReader(self.open_buffer(self.death), reading, is_stopped=lambda: True)
        trained, state = self.saved
        self.trained = [*trained]
        self.reader.restore(state, len(trained))

    def explore(self, dies_after: int | None) -> None:
        """One step of an explorer that has just been started, if the weights for it are there."""
        death = Death()
        buffer = Explorer(self.open_buffer(death), NUM_GROUPS, self.is_in_order).buffer
        progress = Progress.of(buffer)
        step = progress.steps_done
        if step >= NUM_STEPS or step > self.newest_version:
            return
        window = [*progress.missing, *range(progress.next_number, progress.next_number + NUM_GROUPS + AHEAD)]
        chosen = self.draw_numbers(window[: NUM_GROUPS + AHEAD])
        death.left = dies_after
        try:
            for number in chosen if self.is_in_order else ():
                buffer.write([experience(number, step, step)])  # as soon as it is sampled
            buffer.write([experience(number, step, step) for number in chosen])
            buffer.finish(step, chosen)
        except Killed:
            pass

    def train(self, dies_after: int | None) -> None:
        step = len(self.trained)
        if step >= NUM_STEPS:
            return
        self.death.left = dies_after
        try:
            taken = self.reader.take(step)
            self.trained.append([group.group_id for group in taken.groups.groups])
            assert taken.stale == taken.missing == 0
            self.newest_version = max(self.newest_version, step + 1)
        except StepAbandoned:
            pass
        except Killed:
            self.start_trainer()
        self.death.left = None

    def checkpoint(self, dies_after: int | None) -> None:
        self.saved = ([*self.trained], self.reader.state())
        self.death.left = dies_after
        try:
            self.reader.saved(len(self.trained))
        except Killed:
            self.start_trainer()
        self.death.left = None

    def kill_trainer(self, dies_after: int | None) -> None:
        self.start_trainer()


ACTIONS = ("explore", "train", "checkpoint", "kill_trainer")


def play(both: Both, schedule: Sequence[tuple[str, int | None]]) -> None:
    for action, dies_after in schedule:
        getattr(both, action)(dies_after)
    for _ in range(2 * NUM_STEPS):
        both.explore(None)
        both.train(None)
    both.checkpoint(None)


schedules = st.lists(st.tuples(st.sampled_from(ACTIONS), st.none() | st.integers(1, 8)), max_size=14)


@settings(max_examples=15, deadline=None)
@given(schedules)
def test_in_order_every_step_trains_on_the_groups_that_one_process_trains_on(
    schedule: list[tuple[str, int | None]],
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        both = Both(
            lambda death: MortalDirectory(Path(directory), death), lambda window: window[:NUM_GROUPS], is_in_order=True
        )
        play(both, schedule)
        assert both.trained == [[NUM_GROUPS * step, NUM_GROUPS * step + 1] for step in range(NUM_STEPS)]
        assert both.reader.state() == {"taken": []}
        assert both.open_buffer(Death()).entries() == []


@settings(max_examples=15, deadline=None)
@given(schedules, st.randoms(use_true_random=False))
def test_out_of_order_every_group_is_trained_on_once_and_none_is_lost(
    schedule: list[tuple[str, int | None]], random: Any
) -> None:
    """Groups that finish early are taken early, as where rollouts run ahead."""
    with tempfile.TemporaryDirectory() as directory:
        both = Both(
            lambda death: MortalDirectory(Path(directory), death),
            lambda window: random.sample(window, NUM_GROUPS),
            is_in_order=False,
        )
        play(both, schedule)
        trained = [number for numbers in both.trained for number in numbers]
        assert len(trained) == len(set(trained)), "twice"
        assert [len(numbers) for numbers in both.trained] == [NUM_GROUPS] * NUM_STEPS
        buffer = both.open_buffer(Death())
        assert [set(numbers) for numbers in both.trained] == buffer.finished(), "each step its own"
        assert buffer.entries() == [], "lost"
