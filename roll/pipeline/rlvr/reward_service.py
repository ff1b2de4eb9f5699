"""Scores answers in a pool of processes per domain. What goes wrong in a process is the failure of the answers it
had."""

from __future__ import annotations

from collections.abc import Mapping

from roll.distributed.executor.run_clusters import RunClusters
from roll.errors import WorkerError
from roll.pipeline.rlvr.rewards.base import RewardInput, RewardOutcome
from roll.pipeline.rlvr.rlvr_config import RewardConfig

_WORKER = "roll.pipeline.rlvr.reward_worker:RewardWorker"
_GRACE_S = 5.0  # the worker's own time limit comes first; this one is for answers that even an alarm cannot stop


class RewardPools:
    """One pool of `rewards.<domain>.world_size` processes for each domain."""

    def __init__(self, clusters: RunClusters, rewards: Mapping[str, RewardConfig]):
        self._limits_s = {domain: reward.timeout_s for domain, reward in rewards.items()}
        self._pools = {
            domain: clusters.start_pool(f"rewards.{domain}", reward, _WORKER, (domain, reward))
            for domain, reward in rewards.items()
        }

    def wait_ready(self) -> None:
        """Raises WorkerError if a reward cannot be built."""
        for pool in self._pools.values():
            pool.wait_ready()

    async def score(self, domain: str, inputs: list[RewardInput]) -> list[RewardOutcome]:
        """One outcome per input. The worker limits each answer to timeout_s by itself, so a call may take that for
        each."""
        try:
            return await self._call(domain, inputs)
        except (TimeoutError, WorkerError) as error:
            if len(inputs) > 1:  # which answer stopped the process is not known: each alone
                return [outcome for sample in inputs for outcome in await self.score(domain, [sample])]
            hung = isinstance(error, TimeoutError)
            return [RewardOutcome.failed("the reward hung and its process was stopped" if hung else str(error))]

    async def _call(self, domain: str, inputs: list[RewardInput]) -> list[RewardOutcome]:
        limit_s = self._limits_s[domain] * len(inputs) + _GRACE_S
        return await self._pools[domain].call("score", inputs, timeout_s=limit_s)
