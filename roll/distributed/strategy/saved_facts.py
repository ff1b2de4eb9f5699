"""Facts that a trainer's saved state must agree with. They are stored beside it, so that a run checks them before it
starts anything."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from roll.errors import StrategyError
from roll.utils.files import read_object

_FILE = "facts.json"


@dataclass(frozen=True)
class SavedFacts:
    """`fixed` must be the same on resume; `layout` says how the state lies in its files, for a reader that takes
    any."""

    fixed: Mapping[str, object]
    layout: Mapping[str, object] | None = None

    def write(self, directory: Path) -> None:
        (directory / _FILE).write_text(json.dumps(vars(self), indent=2))

    @classmethod
    def read(cls, directory: Path) -> SavedFacts:
        """StrategyError where there are none."""
        try:
            saved = read_object(directory / _FILE)
        except (OSError, ValueError) as error:
            raise StrategyError(f"{directory} holds no state of a role that learns: {_FILE}: {error}") from error
        fixed, layout = saved.get("fixed"), saved.get("layout")
        return cls(fixed if isinstance(fixed, dict) else {}, layout if isinstance(layout, dict) else None)

    @classmethod
    def agreeing(cls, directory: Path, required: Mapping[str, object]) -> SavedFacts:
        """StrategyError where something differs of what is required, too."""
        saved = cls.read(directory)
        if wrong := saved.disagreements(required):
            raise StrategyError(f"{directory} was saved with {', '.join(wrong)}. Resume with the same, or start over.")
        return saved

    def disagreements(self, required: Mapping[str, object]) -> list[str]:
        """Return the facts that differ, of those that both name.

        Example: ["zero_stage 1 (now 2)"]
        """
        then = self.fixed
        return [f"{key} {then[key]!r} (now {now!r})" for key, now in required.items() if then.get(key, now) != now]
