"""Small runs of which everything can be computed by hand."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from roll.configs.plan.batch_plan import RolloutBounds
from roll.simulate.setup import Costs, Devices, GroupWork, Setup

AT_ONCE = 1e15  # tokens per second


@dataclass(frozen=True)
class Given:
    """Groups of these lengths, over and over."""

    lengths: Sequence[Sequence[int]]
    prompt: int = 0

    def group(self, number: int, size: int) -> GroupWork:
        return GroupWork(self.prompt, np.array(self.lengths[number % len(self.lengths)], np.int64))


def costs(**changes: Any) -> Costs:
    """A decode step takes a second, and nothing else takes any time."""
    given: dict[str, Any] = {
        "decode_s": ((1, 1.0),),
        "prefill_tokens_per_s": AT_ONCE,
        "train_tokens_per_s": AT_ONCE,
        "publish_s": 0.0,
        "turn_s": 0.0,
    }
    return Costs(**(given | changes))


def setup(lengths: Sequence[Sequence[int]], bounds: RolloutBounds, is_shared: bool = False, **changes: Any) -> Setup:
    """One engine and one trainer."""
    given: dict[str, Any] = {
        "bounds": bounds,
        "group_size": len(lengths[0]),
        "devices": Devices(1, 1, common=int(is_shared)),
        "workload": Given(lengths),
        "costs": costs(),
    }
    return Setup(**(given | changes))
