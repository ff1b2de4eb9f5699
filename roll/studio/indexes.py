"""The rollouts of the runs that somebody looks at."""

from __future__ import annotations

import threading
from functools import partial
from pathlib import Path

from roll.errors import ConfigError
from roll.studio.live_run import LiveRun
from roll.studio.rollout_index import RolloutIndex
from roll.studio.run_list import RunList
from roll.studio.waits import PATIENCE_S, Waits

_MOST = 4


class RolloutIndexes:
    """Rollout indexes by the key of the run; those of recently viewed runs are cached. Threads may call it at once. If
    the files of a run do not respond, only callers for that run wait, and get Unanswered."""

    def __init__(self, found: RunList):
        self._found, self._waits = found, Waits()
        self._lock = threading.Lock()  # of what is known, never held while a file is read
        self._known: dict[str, tuple[LiveRun, RolloutIndex]] = {}

    def known(self, key: str) -> RolloutIndex | None:
        """The index as of its last update; None if there is no such run."""
        known = self._known.get(key)
        return known[1] if known else self.updated(key)

    def updated(self, key: str, patience_s: float = PATIENCE_S) -> RolloutIndex | None:
        """The index, updated now; None if there is no such run."""
        directory = self._found.directory(key)
        if directory is None:
            return None
        return self._waits.get(("rollouts", key), partial(self._update, key, directory), patience_s)

    def _update(self, key: str, directory: Path) -> RolloutIndex | None:
        """Updates the index of a run. No two updates of a run overlap."""
        with self._lock:
            known = self._known.get(key)
        try:
            live, index = known or (LiveRun(directory), RolloutIndex())
            live.update()
        except ConfigError:
            with self._lock:
                self._known.pop(key, None)
            return None
        index.update(live.files)
        with self._lock:
            self._known.pop(key, None)
            self._known[key] = live, index
            for old in list(self._known)[:-_MOST]:
                del self._known[old]
        return index
