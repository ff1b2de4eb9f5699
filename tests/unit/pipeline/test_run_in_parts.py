"""What a process that has a part of a run does before its first step."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from roll.pipeline.run_in_parts import RunInParts


class Part(RunInParts):
    """Not built: as it is when it is asked whether to evaluate."""

    def __init__(self, explores: bool, measured: tuple[int, ...]):
        config: Any = SimpleNamespace(eval_steps=3, max_steps=7, validates_first=True)
        explorer: Any = object() if explores else None
        self.config, self.explorer = config, explorer
        self._rows = [(step, {}) for step in measured]


Part.__abstractmethods__ = frozenset()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("explores", "steps_done", "measured", "measures"),
    [
        (True, 0, (), True),
        (True, 3, (1, 2), True),  # its groups are there, its row is not: it was killed in between
        (True, 3, (1, 2, 3), False),
        (True, 4, (1, 2, 3), False),  # no evaluation is due
        (False, 0, (), True),
        (False, 3, (), False),  # what a trainer goes on from has its row
    ],
)
def test_an_explorer_makes_up_for_an_evaluation_that_a_kill_cut_off(
    explores: bool, steps_done: int, measured: tuple[int, ...], measures: bool
) -> None:
    part: Any = Part(explores, measured)  # type: ignore[abstract]
    assert part.measures_first(steps_done) is measures
