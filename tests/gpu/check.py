"""One row of the suite: what a check covers, what it needs, and how its figures are judged. No torch here."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Device = Literal["cuda", "cpu"]
State = Literal["passed", "failed", "crashed", "timed out", "skipped", "interrupted"]
Figures = Mapping[str, float]


@dataclass(frozen=True)
class Limit:
    """What a figure may be, and why no more (or less). `cuda_only`: on a CPU the figure says nothing."""

    why: str
    least: float = -math.inf
    most: float = math.inf
    cuda_only: bool = False

    def holds(self, value: float) -> bool:
        return math.isfinite(value) and self.least <= value <= self.most

    def __str__(self) -> str:
        bounds = [f"at least {self.least:g}"] * math.isfinite(self.least)
        bounds += [f"at most {self.most:g}"] * math.isfinite(self.most)
        return " and ".join(bounds)


@dataclass(frozen=True)
class Check:
    """`function` ("module:name") is called as function(place, **arguments), in a process of its own, and returns the
    figures. It takes `gpus` GPUs, and up to `most_gpus` where there are more. `alone`: no other check is on its GPUs
    meanwhile, since it measures them or fills them."""

    name: str
    path: str  # what a run would do that this covers
    code: str  # below roll/
    function: str
    limits: Mapping[str, Limit]
    arguments: Mapping[str, Any] = field(default_factory=dict)
    gpus: int = 1
    most_gpus: int = 0
    packages: tuple[str, ...] = ()
    limit_s: float = 240
    expected_s: float = 45  # on a GPU
    alone: bool = False
    not_on_cpu: str = ""  # why it cannot be rehearsed


@dataclass(frozen=True)
class Machine:
    """Where the suite runs. In a rehearsal `num_gpus` are slots without hardware behind them."""

    device: Device
    num_gpus: int
    packages: frozenset[str]


@dataclass(frozen=True)
class Outcome:
    """What became of a check. `reason`: in words, unless it passed."""

    name: str
    state: State
    reason: str = ""
    figures: Figures = field(default_factory=dict)
    seconds: float = 0.0


def largest(values: Iterable[float]) -> float:
    """The largest of these figures; nan if one of them is, which max() may pass over. ValueError without any."""
    found = [float(value) for value in values]
    return max(found) if all(value == value for value in found) else math.nan


def smallest(values: Iterable[float]) -> float:
    """The smallest of these figures, in the same way."""
    return -largest(-value for value in values)


def why_skipped(check: Check, machine: Machine) -> str | None:
    """Why a check cannot run here; None if it can."""
    if machine.device == "cpu" and check.not_on_cpu:
        return check.not_on_cpu
    missing = [package for package in check.packages if package not in machine.packages]
    if missing:
        return f"{', '.join(missing)} not installed"
    if check.gpus > machine.num_gpus:
        return f"needs {check.gpus} GPUs, there {'is' if machine.num_gpus == 1 else 'are'} {machine.num_gpus}"
    return None


def shares_gpus(check: Check, machine: Machine) -> bool:
    """Whether others may be on its GPUs meanwhile."""
    return not check.alone and num_devices(check, machine) == 1


def num_devices(check: Check, machine: Machine) -> int:
    """How many GPUs a check gets where it can run."""
    return min(max(check.gpus, check.most_gpus), machine.num_gpus)


def judge(check: Check, figures: Figures, device: Device) -> list[str]:
    """What is wrong with the figures of a check that has run to its end."""
    wrong = []
    for name, limit in check.limits.items():
        if limit.cuda_only and device == "cpu":
            continue
        if name not in figures:
            wrong.append(f"{name} was not measured")
        elif not limit.holds(figures[name]):
            wrong.append(f"{name} is {figures[name]:.4g}, must be {limit} ({limit.why})")
    return wrong
