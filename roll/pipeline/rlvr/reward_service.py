"""Scores answers in a pool of processes per domain. What goes wrong in one is the failure of the answer it had."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress

from roll.distributed.executor.run_clusters import RunClusters
from roll.errors import WorkerError
from roll.pipeline.rlvr.reward_worker import LOOP_GRACE_S
from roll.pipeline.rlvr.rewards.base import RewardInput, RewardOutcome
from roll.pipeline.rlvr.rewards.table import scores_together
from roll.pipeline.rlvr.rlvr_config import RewardConfig

_WORKER = "roll.pipeline.rlvr.reward_worker:RewardWorker"
_GRACE_S = 5.0  # the worker's own time limit comes first; this one is for answers that even an alarm cannot stop


class RewardPools:
    """One pool of `rewards.<domain>.world_size` processes for each domain. Every answer is a call with a limit of its
    own; an async reward gets the answers of a group in one, and those that another one kept from being judged again,
    each alone."""

    def __init__(self, clusters: RunClusters, rewards: Mapping[str, RewardConfig]):
        self._rewards = rewards
        self._pools = {
            domain: clusters.start_pool(f"rewards.{domain}", reward, _WORKER, (domain, reward))
            for domain, reward in rewards.items()
        }
        self._together = {domain: scores_together(reward) for domain, reward in rewards.items()}

    def wait_ready(self) -> None:
        """Raises WorkerError if a reward cannot be built."""
        for pool in self._pools.values():
            pool.wait_ready()

    async def score(self, domain: str, inputs: list[RewardInput]) -> list[RewardOutcome]:
        """One outcome per input."""
        outcomes: list[RewardOutcome | None] = [None] * len(inputs)
        if self._together[domain] and len(inputs) > 1:
            with suppress(TimeoutError, WorkerError):  # which answer stopped the process is not known
                outcomes = await self._call(domain, inputs)

        async def judged(sample: RewardInput, outcome: RewardOutcome | None) -> RewardOutcome:
            return outcome or await self._score_alone(domain, sample)

        return await asyncio.gather(*map(judged, inputs, outcomes))

    async def _score_alone(self, domain: str, sample: RewardInput) -> RewardOutcome:
        try:
            (outcome,) = await self._call(domain, [sample])
        except TimeoutError:
            return RewardOutcome.failed("the reward hung and its process was stopped")
        except WorkerError as error:
            return RewardOutcome.failed(str(error))
        assert outcome is not None, "one that is alone is judged"
        return outcome

    async def _call(self, domain: str, inputs: list[RewardInput]) -> list[RewardOutcome | None]:
        return await self._pools[domain].call("score", inputs, timeout_s=self._limit_s(domain, len(inputs)))

    def _limit_s(self, domain: str, count: int) -> float:
        """For all that the worker limits by itself: an answer, or the formats one by one and then the loop."""
        reward = self._rewards[domain]
        if not self._together[domain]:
            return reward.timeout_s + _GRACE_S
        rounds = 1 if reward.format_pattern is None else 1 + count
        return rounds * reward.timeout_s + LOOP_GRACE_S + _GRACE_S
