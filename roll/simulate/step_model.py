"""`RLPipeline.step` on a virtual clock: its phases in its order, which take the time that they cost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from roll.distributed.scheduler.rollout_core import RolloutCore, StepGroups
from roll.simulate.fleet import Fleet
from roll.simulate.setup import PASSES, Setup
from roll.types.rollout import TrajectoryGroup
from roll.utils.timing import Timer

_NO_TIME = 1e-9  # seconds


class StepModel:
    """Trains on what the core gives, and publishes. `timer` has the phases of the present step."""

    def __init__(self, setup: Setup, core: RolloutCore, fleet: Fleet):
        self._setup, self._core, self._fleet = setup, core, fleet
        self._loop = asyncio.get_running_loop()
        self.timer = Timer(self._loop.time)
        self._are_away = False
        self.train_busy_s = 0.0

    async def step(self, step: int) -> StepGroups:
        with self.timer("rollout"):
            async with self.hold("actor_infer", samples=True):
                groups = await self._core.collect(step)
        with self.timer("gather"):
            await self._beside_engines(self._setup.costs.driver_s)
        async with self.reserved("actor_train"):
            if groups.groups:
                await self._learn(groups)
            with self.timer("weight_sync"):
                await self._publish(step + 1)
        return groups

    async def _learn(self, groups: StepGroups) -> None:
        costs, setup, num_tokens = self._setup.costs, self._setup, tokens_of(groups.groups)
        with self.timer("score"):
            for name, devices in setup.passes.items():
                with self.timer(name):
                    async with self.hold(PASSES[name]):
                        await self._work(num_tokens / (costs.score_tokens_per_s * devices))
        train_s = costs.train_overhead_s + num_tokens / (costs.train_tokens_per_s * setup.devices.train)
        if setup.trains_critic:
            with self.timer("train_critic"):
                async with self.hold("critic"):
                    await self._work(train_s * costs.critic_share)
        with self.timer("train_actor"):
            async with self.hold("actor_train"):
                await self._work(train_s)

    async def _publish(self, version: int) -> None:
        if version % self._setup.bounds.sync_interval:
            return
        async with self.hold("actor_train", "actor_infer"):
            self._fleet.hold()
            await self._work(self._setup.costs.publish_s)
            self._fleet.set_version(version)
            self._fleet.release()
        self._core.published(version)

    async def _work(self, seconds: float) -> None:
        started = self._loop.time()
        await self._beside_engines(seconds)
        self.train_busy_s += self._loop.time() - started

    async def _beside_engines(self, seconds: float) -> None:
        """Spend work that takes so many seconds alone: while engines sample, it and they get `1 / beside` of their
        speed."""
        slowness = self._setup.costs.beside
        if slowness == 1 or not seconds:
            await asyncio.sleep(seconds)
            return
        self._fleet.slow_down(slowness)
        while seconds > _NO_TIME:
            started, busy = self._loop.time(), self._fleet.seconds.busy
            await asyncio.sleep(seconds)
            share = (self._fleet.seconds.busy - busy) / self._setup.devices.num_engines
            seconds -= self._loop.time() - started - share * (1 - 1 / slowness)
        self._fleet.slow_down(1.0)

    @asynccontextmanager
    async def hold(self, *roles: str, samples: bool = False) -> AsyncIterator[None]:
        """Simulate `Placement.hold`: the engines on shared devices leave while others use them, and come back without
        their KV cache."""
        if self._setup.devices.common:
            await self._turn(leaves=not samples)
        yield

    @asynccontextmanager
    async def reserved(self, *roles: str) -> AsyncIterator[None]:
        """Keeps the devices free. Afterwards engines that sample ahead return by themselves."""
        yield
        if self._setup.devices.common and not self._setup.bounds.alternates:
            await self._turn(leaves=False)

    async def _turn(self, leaves: bool) -> None:
        if leaves == self._are_away:
            return
        self._are_away = leaves
        if leaves:
            self._fleet.leave(self._setup.devices.num_leaving)
        await asyncio.sleep(self._setup.costs.turn_s)
        if not leaves:
            self._fleet.come_back()


def tokens_of(groups: list[TrajectoryGroup]) -> int:
    """Prompts and answers."""
    return sum(row.facts.num_tokens for group in groups for row in group.trajectories)
