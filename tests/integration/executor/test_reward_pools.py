"""Answers of a group that take their reward's process down, on real Ray."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from roll.configs.plan.layout import RolePlace, WorkerSlot
from roll.distributed.executor.pools.task_pool import TaskPool
from roll.distributed.executor.processes.resource_manager import ResourceManager
from roll.rewards.base import RewardInput
from roll.rewards.config import RewardConfig
from roll.rewards.service import RewardPools

USERS = Path(__file__).parents[2] / "unit" / "rewards"


class Clusters:
    """Starts pools of one process each, as RunClusters does."""

    def __init__(self, resources: ResourceManager):
        self.resources = resources
        self.pools: list[TaskPool] = []

    def start_pool(self, role: str, settings: RewardConfig, worker_class: str, arguments: tuple[Any, ...]) -> TaskPool:
        place = RolePlace(role, (WorkerSlot(0),))
        pool = TaskPool(role, self.resources, place, worker_class, arguments, {"PYTHONPATH": str(USERS)})
        self.pools.append(pool)
        return pool


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_of_a_group_only_the_answer_fails_that_hangs_where_no_alarm_is_heard(
    resources: ResourceManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(USERS))
    clusters = Clusters(resources)
    names = ("unstoppable", "unstoppable_async", "unstoppable_batch", "Batched")
    rewards = RewardPools(
        clusters,  # type: ignore[arg-type]
        {name: RewardConfig(reward=f"user_rewards:{name}", timeout_s=1.0) for name in names},
    )
    rewards.wait_ready()
    group = [RewardInput("", text) for text in ("a", "bb", "endless", "cccc")]

    async def ask() -> list[list[Any]]:
        return await asyncio.gather(*(rewards.score(name, group) for name in names))

    try:
        *unstoppable, batched = asyncio.run(ask())
        assert [outcome.score for outcome in batched] == [4.0] * 4, "all of the group in one call"
        for outcomes in unstoppable:
            assert [o.score for o in outcomes if o.failure is None] == [1.0, 2.0, 4.0]
            assert outcomes[2].failure == "the reward hung and its process was stopped"
    finally:
        for pool in clusters.pools:
            pool.kill()
