"""Which split of the devices, which ratio and which staleness: all of them, and those that nothing beats."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from roll.configs.plan.rollout_bounds import RolloutBounds, ahead_by, least_staleness
from roll.simulate.setup import Devices, Setup
from roll.simulate.simulation import Report, simulate


@dataclass(frozen=True)
class Found:
    setup: Setup
    ratio: float
    report: Report


def candidates(base: Setup, ratios: Sequence[float], train_shares: Sequence[float]) -> Iterator[tuple[float, Setup]]:
    """The ratios with the least staleness that each allows and with one step more; the devices of `base` shared, split
    by these shares, and all sampling while these shares of them train."""
    for devices in _splits(base.devices, train_shares):
        for ratio in sorted(set(ratios)):
            least = least_staleness(ratio, base.bounds.sync_interval)
            for staleness in (least, least + 1) if ratio else (least,):
                ahead = ahead_by(ratio, base.bounds.num_groups)
                bounds = RolloutBounds(base.bounds.num_groups, ahead, base.bounds.sync_interval, staleness)
                passes = {name: min(count, devices.train) for name, count in base.passes.items()}
                yield ratio, replace(base, bounds=bounds, devices=devices, passes=passes)


def _splits(devices: Devices, train_shares: Sequence[float]) -> Iterator[Devices]:
    total, per_engine = devices.total, devices.per_engine
    if total % per_engine == 0:
        yield Devices.shared(total, per_engine)
    counts = {round(share * total / per_engine) * per_engine or per_engine for share in train_shares}
    for train in sorted(count + total % per_engine for count in counts):
        if 0 < train <= total - per_engine:
            yield Devices(train, total - train, per_engine)
            if total % per_engine == 0:
                yield Devices.shared(total, per_engine, train)


def search(base: Setup, ratios: Sequence[float], train_shares: Sequence[float], num_steps: int) -> Iterator[Found]:
    for ratio, setup in candidates(base, ratios, train_shares):
        yield Found(setup, ratio, simulate(setup, num_steps))


def frontier(found: Sequence[Found]) -> list[Found]:
    """Those that no other beats in throughput at the same or less mean staleness, freshest first."""
    best: list[Found] = []
    for one in sorted(found, key=lambda f: (f.report.staleness_mean, f.report.step_s)):
        if not best or one.report.step_s < best[-1].report.step_s:
            best.append(one)
    return best
