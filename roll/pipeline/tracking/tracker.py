"""What a tracker is, and several of them as one."""

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

logger = logging.getLogger(__name__)

Metrics = Mapping[str, float]
"""Numbers by name (docs/metrics.md)."""


@dataclass(frozen=True)
class TrackedRun:
    """What every tracker is told about the run. config is redacted already."""

    name: str
    directory: Path
    config: Mapping[str, Any]
    first_step: int = 0

    @property
    def resumed(self) -> bool:
        return self.first_step > 0


class Tracker(ABC):
    """Takes the metrics of each step. Steps never go back within a run."""

    @abstractmethod
    def log(self, step: int, metrics: Metrics) -> None:
        """Records the metrics of a step. A step may be logged in several calls with different names."""

    def summary(self, values: Mapping[str, Any]) -> None:
        """Records what is known at the end of the run. Not every service has a place for it."""
        return None

    def close(self, failed: bool = False) -> None:
        """Sends and writes what is still held back; failed says how the run ended. Called once."""
        return None


class NamedTracker(Tracker):
    """A tracker that `track_with` can name.

    Its package is imported when the tracker is made, so that naming it in a dry run costs nothing.
    """

    module: ClassVar[str | None] = None
    """The module that must be importable, None when nothing beyond roll's own requirements is."""
    install: ClassVar[str] = ""
    """The line that installs it."""
    settings: ClassVar[frozenset[str]] = frozenset()
    """The keys of `tracker_kwargs` that this tracker understands."""
    records_process: ClassVar[bool] = False
    """Whether it stores the command line as the system knows it, where we cannot mask it."""

    @abstractmethod
    def __init__(self, run: TrackedRun, settings: Mapping[str, Any]):
        """Starts tracking. Raises whatever the service raises when it cannot."""


class Trackers(Tracker):
    """Several trackers as one. One that fails is reported once and dropped: watching a run must not end it."""

    def __init__(self, trackers: Mapping[str, Tracker]):
        self._trackers = dict(trackers)

    @property
    def names(self) -> Sequence[str]:
        """The trackers still at work."""
        return tuple(self._trackers)

    def log(self, step: int, metrics: Metrics) -> None:
        numbers = {name: float(value) for name, value in metrics.items()}
        self._each(f"at step {step}", lambda tracker: tracker.log(step, numbers))

    def summary(self, values: Mapping[str, Any]) -> None:
        self._each("with the summary", lambda tracker: tracker.summary(values))

    def close(self, failed: bool = False) -> None:
        self._each("while closing", lambda tracker: tracker.close(failed))
        self._trackers.clear()

    def _each(self, when: str, do: Callable[[Tracker], None]) -> None:
        for name, tracker in list(self._trackers.items()):
            try:
                do(tracker)
            except Exception as error:
                del self._trackers[name]
                logger.warning(
                    "tracker %s failed %s and is dropped for the rest of the run; the run goes on. %s: %s",
                    name,
                    when,
                    type(error).__name__,
                    error,
                )
