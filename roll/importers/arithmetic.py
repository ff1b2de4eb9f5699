"""Counts of a step in the words of here: what another system says of batches becomes micro batches and accumulation."""

from __future__ import annotations

from dataclasses import dataclass

from roll.importers.rows import NotHere

_MOST = 10**9  # samples of a step; more are a slip of the pen, and take long to divide


@dataclass(frozen=True)
class Split:
    """How the samples of an update are laid out: `micro` x `passes` x `ranks`."""

    micro: int
    passes: int
    ranks: int
    wanted: int

    @property
    def samples(self) -> int:
        return self.micro * self.passes * self.ranks

    @property
    def text(self) -> str:
        return f"{self.samples} samples per update = {self.micro} x {self.passes} passes x {self.ranks} ranks"

    @property
    def near(self) -> str:
        if self.samples == self.wanted:
            return ""
        return f"{self.wanted} were requested, which do not split over the step and its ranks."


def split(samples_per_step: int, samples_per_update: int, ranks: int, micro: int) -> Split:
    """The samples of an update over ranks and passes. A step has whole updates, and an update whole micro batches:
    the micro batch is the largest that divides and is not above the given one; an update that does not divide the
    step becomes the nearest that does.

    Example: split(1024 * 5, 256 * 5, 8, 4) is 4 x 40 passes x 8 ranks. Raises NotHere for more samples than any step
    has.
    """
    if samples_per_step > _MOST:
        raise NotHere(f"{samples_per_step} samples are more than a step can have")
    per_step = max(1, samples_per_step // ranks)
    per_rank = nearest_divisor(max(1, min(samples_per_update // ranks, per_step)), per_step)
    micro = largest_divisor(per_rank, micro)
    return Split(micro, per_rank // micro, ranks, samples_per_update)


def nearest_divisor(value: int, whole: int) -> int:
    """The divisor of `whole` next to a value, the smaller of two. Example: nearest_divisor(7, 32) == 8."""
    return min((d for d in divisors(whole)), key=lambda d: (abs(d - value), d))


def largest_divisor(whole: int, most: int) -> int:
    """Example: largest_divisor(160, 6) == 5."""
    return max(d for d in divisors(whole) if d <= max(1, most))


def divisors(whole: int) -> list[int]:
    """All of them. Raises ValueError above 10^12, which no step has."""
    if whole > 10**12:
        raise ValueError(f"{whole} samples are in no step")
    small = [d for d in range(1, int(whole**0.5) + 1) if whole % d == 0]
    return sorted({*small, *(whole // d for d in small)})


def devices(first: int, count: int) -> str:
    """Example: devices(4, 4) == "list(range(4, 8))"."""
    return f"list(range({first}, {first + count}))"
