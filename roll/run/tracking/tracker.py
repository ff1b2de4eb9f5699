"""Interface of a tracker, and several of them as one."""

import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

logger = logging.getLogger(__name__)

_MAX_MISSED = 10_000
_MAX_STEPS_TO_WAIT = 64

Metrics = Mapping[str, float]
"""Numbers by name (docs/metrics.md)."""


@dataclass(frozen=True)
class TrackedRun:
    """Facts about the run that every tracker gets."""

    name: str
    directory: Path
    config: Mapping[str, Any]
    first_step: int = 0

    @property
    def resumed(self) -> bool:
        return self.first_step > 0


@dataclass(frozen=True)
class TrackedSample:
    """A rollout as a service shows it, in a row of a table or as a text. reward is None where it failed. `pictures`:
    small copies of what it showed, as PNG files."""

    group: str
    domain: str
    prompt: str
    response: str
    reward: float | None
    ground_truth: str
    finish_reason: str
    response_tokens: int
    pictures: tuple[bytes, ...] = ()

    @classmethod
    def columns(cls) -> list[str]:
        """Names of the cells, which hold no pictures."""
        return [column.name for column in fields(cls) if column.name != "pictures"]

    def cells(self) -> list[str | float | None]:
        return [getattr(self, name) for name in self.columns()]


def picture_name(sample: TrackedSample, place: int, number: int) -> str:
    """A name for a picture of the sample at this place among those of a step.

    Example: 2_group_17_0, the first one of the third sample, which is of group 17.
    """
    group = "".join(each if each.isalnum() and each.isascii() else "_" for each in sample.group)
    return f"{place}_group_{group}_{number}"


class Tracker(ABC):
    """Takes the metrics of each step. Steps never go back within a run."""

    @abstractmethod
    def log(self, step: int, metrics: Metrics) -> None:
        """Records the metrics of a step. A step may be logged in several calls with different names."""

    def samples(self, step: int, kind: str, samples: Sequence[TrackedSample]) -> None:
        """Records rollouts of a step (kind "train"), or of a validation after it ("val", "val.NAME"), before the
        metrics of the step. Not every tracker has a place for them."""
        return None

    def summary(self, values: Mapping[str, Any]) -> None:
        """Records what is known at the end of the run. Not every service has a place for it."""
        return None

    def close(self, failed: bool = False) -> None:
        """Sends and writes what is still held back; failed says how the run ended. Called once."""
        return None


class Trackers(Tracker):
    """Several trackers as one. One that fails is asked again later: watching a run must not end it."""

    def __init__(self, trackers: Mapping[str, Tracker]):
        self._trackers = [_Patient(name, tracker) for name, tracker in trackers.items()]

    @property
    def names(self) -> Sequence[str]:
        """The trackers that took what they were last told."""
        return tuple(tracker.name for tracker in self._trackers if not tracker.num_failures)

    def log(self, step: int, metrics: Metrics) -> None:
        numbers = {name: float(value) for name, value in metrics.items()}
        for tracker in self._trackers:
            tracker.log(step, numbers)

    def samples(self, step: int, kind: str, samples: Sequence[TrackedSample]) -> None:
        for tracker in self._trackers:
            tracker.samples(step, kind, samples)

    def summary(self, values: Mapping[str, Any]) -> None:
        for tracker in self._trackers:
            tracker.summary(values)

    def close(self, failed: bool = False) -> None:
        for tracker in self._trackers:
            tracker.close(failed)
        self._trackers.clear()


class _Patient(Tracker):
    """A tracker that may fail for a while: metrics that it missed are kept and told in order when it works again. After
    n failures in a row it is left alone for 2^n steps, as every try may wait for a service that does not answer."""

    def __init__(self, name: str, tracker: Tracker):
        self.name, self._tracker = name, tracker
        self.num_failures = 0
        self._missed: deque[tuple[int, Metrics]] = deque(maxlen=_MAX_MISSED)
        self._steps_to_wait = 0

    def log(self, step: int, metrics: Metrics) -> None:
        self._missed.append((step, metrics))
        if self._steps_to_wait:
            self._steps_to_wait -= 1
        else:
            self._try(f"at step {step}", self._tell_missed)

    def samples(self, step: int, kind: str, samples: Sequence[TrackedSample]) -> None:
        """Send samples to the tracker; samples that it misses stay on the disk of the run alone."""
        if not self._steps_to_wait:
            self._try(f"with samples of step {step}", lambda: self._tracker.samples(step, kind, samples))

    def summary(self, values: Mapping[str, Any]) -> None:
        self._try("with the last steps", self._tell_missed)
        self._try("with the summary", lambda: self._tracker.summary(values))

    def close(self, failed: bool = False) -> None:
        self._try("while closing", lambda: self._tracker.close(failed))
        if self._missed:
            logger.warning("tracker %s never took %d of the run's steps", self.name, len(self._missed))

    def _tell_missed(self) -> None:
        while self._missed:
            self._tracker.log(*self._missed[0])
            self._missed.popleft()
        if self.num_failures:
            logger.info("tracker %s works again", self.name)
        self.num_failures = 0

    def _try(self, when: str, do: Callable[[], None]) -> None:
        try:
            do()
        except Exception as error:
            self.num_failures += 1
            self._steps_to_wait = min(2**self.num_failures, _MAX_STEPS_TO_WAIT)
            if self.num_failures == 1:
                text = "tracker %s failed %s; the run continues, and it gets the metrics that it missed later. %s: %s"
                logger.warning(text, self.name, when, type(error).__name__, error)
