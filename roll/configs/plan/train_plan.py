"""The arithmetic of one role that learns."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

Rounding = Literal["whole", "up", "down", "nearest"]


@dataclass(frozen=True)
class TrainPlan:
    """The arithmetic of one role that learns. A sample is a row, or `rows_together` of them; counts are of rows.

    Example: 32 prompts x 8 answers = 256 samples; micro batch 16, accumulation 2, 2 ranks: 64 samples per update, 4
    updates per step and epoch.
    """

    role: str
    samples_per_step: int
    micro_batch_size: int
    accumulation: int
    dp_size: int
    epochs: int
    steps: int  # steps of the run in which this role learns
    warmup_updates: int
    infer_batch_size: int
    max_grad_norm: float = 1.0  # 0: gradients are not clipped
    rounding: Rounding = "whole"  # of samples that do not split into updates; whole: they have to
    waits: int = 0  # steps of the run before it learns
    warmup_ratio: float = 0.0  # where warmup_updates follows from it
    optimizer_waits: bool = False  # its states are in host memory while gradients are computed
    sequence_size: int = 1  # ranks that take the same rows and share every sequence
    rows_together: int = 1  # in one micro batch

    @property
    def samples_per_update(self) -> int:
        return self.micro_batch_size * self.accumulation * self.dp_size

    @property
    def splits_evenly(self) -> bool:
        return self.samples_per_step % self.samples_per_update == 0

    @property
    def updates_per_epoch(self) -> int:
        """Example: 96 samples, 64 per update: 2 updates when rounded up, 1 when rounded down."""
        exact = self.samples_per_step / self.samples_per_update
        match self.rounding:
            case "whole":
                return math.floor(exact)
            case "up":
                return math.ceil(exact)
            case "down":
                return max(1, math.floor(exact))
            case "nearest":
                return max(1, round(exact))

    @property
    def updates_per_step(self) -> int:
        return self.updates_per_epoch * self.epochs

    @property
    def total_updates(self) -> int:
        """Length of the learning-rate schedule."""
        return self.updates_per_step * self.steps

    def over(self, run_steps: int) -> TrainPlan:
        """Return the plan in a run of so many steps. Example: with 5 steps to wait, it learns in 15 of 20."""
        plan = replace(self, steps=max(0, run_steps - self.waits))
        if not self.warmup_ratio:
            return plan
        return replace(plan, warmup_updates=math.ceil(self.warmup_ratio * plan.total_updates))
