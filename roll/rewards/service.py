"""Scores answers in a pool of processes per domain. What goes wrong in one is the failure of the answer it had."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Protocol

from roll.distributed.executor.clusters import RunClusters
from roll.errors import WorkerError
from roll.rewards.base import RewardInput, RewardOutcome
from roll.rewards.config import RewardConfig
from roll.rewards.table import judge_class, sharing_of
from roll.rewards.worker import LOOP_GRACE_S, Attempts
from roll.types.rollout import Place


class RewardService(Protocol):
    """Scores answers of one domain somewhere; returns one outcome per input, in their order. `places` say where the
    texts of the inputs are, if they are not in them."""

    def scores_alone(self, domain: str) -> bool:
        """True if it pays to ask for each answer as soon as it is there, False if for those of a group at once."""
        ...

    async def score(
        self, domain: str, inputs: list[RewardInput], places: Sequence[Place] = ()
    ) -> list[RewardOutcome]: ...


_WORKER = "roll.rewards.worker:RewardWorker"
_QUICK_S = 0.02  # where a reward takes less, answers that travel together cost less than waiting for them
_GRACE_S = 5.0  # the worker's own time limit comes first; this one is for answers that even an alarm cannot stop


class RewardPools:
    """One pool of `rewards.<domain>.world_size` processes for each domain. Every answer is a call with a limit of its
    own; a reward that is async or takes a batch gets the answers of a group in one, and those that another one kept
    from being judged again, each alone. What fails for a cause that may pass is tried again (`reward_retries`)."""

    def __init__(self, clusters: RunClusters, rewards: Mapping[str, RewardConfig]):
        self._rewards = rewards
        self._pools = {
            domain: clusters.start_pool(
                f"rewards.{domain}",
                reward,
                _WORKER,
                (domain, reward if reward.judge_model_type is None else judge_class().for_workers(reward)),
            )
            for domain, reward in rewards.items()
        }
        self._sharing = {domain: sharing_of(reward) for domain, reward in rewards.items()}
        self._attempts = {domain: Attempts(reward) for domain, reward in rewards.items()}

    def wait_ready(self) -> None:
        """Raises WorkerError if a reward cannot be built."""
        for pool in self._pools.values():
            pool.wait_ready()

    def scores_alone(self, domain: str) -> bool:
        mean_s = self._attempts[domain].mean_s
        return self._sharing[domain] == "none" and (mean_s is None or mean_s > _QUICK_S)

    async def score(self, domain: str, inputs: list[RewardInput], places: Sequence[Place] = ()) -> list[RewardOutcome]:
        """One outcome per input. `places` say where their texts are, if they are not in them."""

        async def once(chosen: Sequence[int]) -> list[RewardOutcome]:
            some = [inputs[index] for index in chosen]
            return await self._score(domain, some, [places[index] for index in chosen] if places else ())

        return await self._attempts[domain].outcomes(len(inputs), once)

    async def _score(self, domain: str, inputs: list[RewardInput], places: Sequence[Place]) -> list[RewardOutcome]:
        pool, outcomes = self._pools[domain], [None] * len(inputs)
        seconds = self._attempts[domain].limit_s
        whereabouts = [(place.row, place.texts) for place in places] or [(0, None)] * len(inputs)
        if self._sharing[domain] != "none" and len(inputs) > 1:
            rows, handles = zip(*whereabouts, strict=True)
            limit_s = self._limit_s(domain, seconds, len(inputs))
            with suppress(TimeoutError, WorkerError):  # which answer stopped the process is not known
                outcomes = await pool.call("score", inputs, rows, handles[0], seconds, timeout_s=limit_s)
        alone = [
            ([sample], (row,), handle, seconds)
            for sample, (row, handle), outcome in zip(inputs, whereabouts, outcomes, strict=True)
            if outcome is None
        ]
        judged = map(_outcome, await pool.call_each("score", alone, timeout_s=self._limit_s(domain, seconds, 1)))
        return [next(judged) if outcome is None else outcome for outcome in outcomes]

    def _limit_s(self, domain: str, seconds: float, count: int) -> float:
        """Seconds for all that the worker limits by itself: one response; or the formats one by one and then the loop;
        or a batch, which has the time of all its responses."""
        reward, sharing = self._rewards[domain], self._sharing[domain]
        if sharing == "none":
            return seconds + _GRACE_S
        rounds = (count if sharing == "batch" else 1) + (0 if reward.format_pattern is None else count)
        return rounds * seconds + LOOP_GRACE_S + _GRACE_S


class RewardsByDomain:
    """Scores answers where their domain is scored."""

    def __init__(self, services: Mapping[str, RewardService]):
        self._services = services

    def scores_alone(self, domain: str) -> bool:
        return self._services[domain].scores_alone(domain)

    async def score(self, domain: str, inputs: list[RewardInput], places: Sequence[Place] = ()) -> list[RewardOutcome]:
        return await self._services[domain].score(domain, inputs, places)


def _outcome(reply: list[RewardOutcome] | BaseException) -> RewardOutcome:
    if isinstance(reply, TimeoutError):
        return RewardOutcome.failed("the reward hung and its process was stopped", may_pass=True)
    if isinstance(reply, WorkerError):
        return RewardOutcome.failed(str(reply), may_pass=True)
    if isinstance(reply, BaseException):
        raise reply
    (outcome,) = reply
    return outcome
