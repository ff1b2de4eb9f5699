"""Interface of a tracker, and several of them as one."""

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar

logger = logging.getLogger(__name__)

_MOST_STEPS_LEFT_ALONE = 64

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
    """A rollout as a service shows it, in a row of a table or as a text. reward is None where it failed."""

    group: str
    domain: str
    prompt: str
    response: str
    reward: float | None
    ground_truth: str
    finish_reason: str
    response_tokens: int

    @classmethod
    def columns(cls) -> list[str]:
        return [column.name for column in fields(cls)]

    def cells(self) -> list[str | float | None]:
        return [getattr(self, name) for name in self.columns()]


class Tracker(ABC):
    """Takes the metrics of each step, which never go back. `asks_a_service`: a call may wait for minutes."""

    asks_a_service: ClassVar[bool] = True

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
    """Several trackers as one. Watching a run must not end it: what one of them does not take is lost to it, said at
    the first failure of several in a row. A service is left alone for 2^n steps after n of them."""

    def __init__(self, trackers: Mapping[str, Tracker]):
        self._trackers = dict(trackers)
        self._failures = dict.fromkeys(trackers, 0)  # in a row
        self._asked_again = dict.fromkeys(trackers, 0)  # the step

    @property
    def names(self) -> Sequence[str]:
        """The trackers that took what they were last told."""
        return tuple(name for name in self._trackers if not self._failures[name])

    def log(self, step: int, metrics: Metrics) -> None:
        numbers = {name: float(value) for name, value in metrics.items()}
        self._each(f"at step {step}", lambda tracker: tracker.log(step, numbers), step)

    def samples(self, step: int, kind: str, samples: Sequence[TrackedSample]) -> None:
        self._each(f"with samples of step {step}", lambda tracker: tracker.samples(step, kind, samples), step)

    def summary(self, values: Mapping[str, Any]) -> None:
        self._each("with the summary", lambda tracker: tracker.summary(values))

    def close(self, failed: bool = False) -> None:
        self._each("while closing", lambda tracker: tracker.close(failed))
        self._trackers.clear()

    def _each(self, when: str, do: Callable[[Tracker], None], step: int | None = None) -> None:
        for name, tracker in self._trackers.items():
            if step is not None and step < self._asked_again[name]:
                continue
            try:
                do(tracker)
                self._failures[name] = 0
            except Exception as error:
                if not self._failures[name]:
                    text = "tracker %s failed %s, and the run continues. %s: %s"
                    logger.warning(text, name, when, type(error).__name__, error)
                self._failures[name] += 1
                if step is not None and tracker.asks_a_service:
                    self._asked_again[name] = step + 1 + min(2 ** self._failures[name], _MOST_STEPS_LEFT_ALONE)
