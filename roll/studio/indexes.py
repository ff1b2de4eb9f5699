"""The rollouts of the runs that somebody looks at."""

from __future__ import annotations

import threading

from roll.errors import ConfigError
from roll.studio.live_run import LiveRun
from roll.studio.rollout_index import RolloutIndex
from roll.studio.run_list import RunList

_MOST = 4


class RolloutIndexes:
    """By the key of the run; those of the runs looked at last are kept. Threads may ask at once."""

    def __init__(self, found: RunList):
        self._found = found
        self._lock = threading.Lock()
        self._known: dict[str, tuple[LiveRun, RolloutIndex]] = {}

    def known(self, key: str) -> RolloutIndex | None:
        """As it was when it was last looked at; None where there is no such run."""
        known = self._known.get(key)
        return known[1] if known else self.updated(key)

    def updated(self, key: str) -> RolloutIndex | None:
        """As it is by now."""
        directory = self._found.directory(key)
        if directory is None:
            return None
        with self._lock:
            try:
                live, index = self._known.pop(key, None) or (LiveRun(directory), RolloutIndex())
                live.update()
            except ConfigError:
                return None
            index.update(live.files)
            self._known[key] = live, index
            for old in list(self._known)[:-_MOST]:
                del self._known[old]
            return index
