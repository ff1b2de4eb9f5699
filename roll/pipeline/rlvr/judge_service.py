"""Scores answers by judges on engines of the run, on the event loop beside the rollouts."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, cast

import regex

from roll.distributed.executor.clusters import RLClusters
from roll.distributed.executor.pictures import PictureLoader
from roll.distributed.executor.placement import Claim
from roll.distributed.executor.step_rows import texts_at, texts_of
from roll.errors import ConfigError, WorkerError
from roll.pipeline.rlvr.judge_checks import judge_sight_problems
from roll.pipeline.rlvr.prompt_rollouter import reward_input
from roll.pipeline.rlvr.rlvr_config import RLVRConfig
from roll.rewards.base import Reward, RewardInput, RewardOutcome, Score, has_form
from roll.rewards.config import RewardConfig
from roll.rewards.judge.api import method_of
from roll.rewards.judge.engine import EngineModel, JudgeText
from roll.rewards.judge.judge import Judge
from roll.rewards.table import build_reward
from roll.rewards.worker import Attempts, failed, outcome_of, timed_out
from roll.types.rollout import Generate, Place, Trajectory, TrajectoryGroup


class Engines(Protocol):
    """The engines of one role."""

    @property
    def generate(self) -> Generate: ...

    @property
    def everything(self) -> Claim: ...


@dataclass(frozen=True)
class _Judged:
    """A domain. `reward`: the judge, or the sum of the parts of which it is one."""

    reward: Callable[[RewardInput], Awaitable[Score]]
    timeout_s: float
    form: regex.Pattern[str] | None
    attempts: Attempts

    async def score(self, sample: RewardInput) -> RewardOutcome:
        """Raises WorkerError where no engine is left."""
        (outcome,) = await self.attempts.outcomes(1, lambda _: self._score(sample))
        return outcome

    async def _score(self, sample: RewardInput) -> list[RewardOutcome]:
        started, limit_s = time.monotonic(), self.attempts.limit_s
        limit = asyncio.timeout(limit_s)
        try:
            async with limit:
                returned = await self.reward(sample) if await self._is_formed(sample.response_text) else 0.0
        except WorkerError:
            raise
        except Exception as error:
            if isinstance(error, TimeoutError) and limit.expired():
                return [timed_out(limit_s, self.timeout_s, started)]
            return [failed(error, started)]
        return [outcome_of(returned, time.monotonic() - started)]

    async def _is_formed(self, text: str) -> bool:
        if self.form is None:
            return True
        match = functools.partial(self.form.fullmatch, timeout=self.timeout_s, concurrent=True)
        return await asyncio.to_thread(has_form, match, self.form.pattern, text)


class JudgeModels:
    """The judges on engines of a run (`rlvr_pipeline.ScoringModels`)."""

    def __init__(self, config: RLVRConfig, policy: object, policy_vision: object):
        self._config, self._texts = config, judge_texts(config)

    def check_pictures(self, domains: Collection[str]) -> None:
        check_judges(self._config, self._texts, domains)

    def started(
        self, clusters: RLClusters, run: Callable[[Coroutine[Any, Any, Any]], Any]
    ) -> tuple[Mapping[str, EngineJudges], Mapping[str, AfterRolloutJudge]]:
        judges = EngineJudges(self._config, clusters.engines, self._texts)
        during = dict.fromkeys(self._config.judge_of, judges)
        return during, judges.group_scorers(self._config, clusters.engines, run)


class EngineJudges:
    """The domains of `config.judge_of`. Their requests go out as soon as an answer is there; engines give each its
    turn."""

    def __init__(self, config: RLVRConfig, engines: Mapping[str, Engines], texts: Mapping[str, JudgeText]):
        self._judged = {
            domain: _judged(domain, config.rewards[domain], engines[role], texts[role], config.seed)
            for domain, role in config.judge_of.items()
        }

    def scores_alone(self, domain: str) -> bool:
        return True

    def group_scorers(
        self, config: RLVRConfig, engines: Mapping[str, Engines], run: Callable[[Coroutine[Any, Any, Any]], Any]
    ) -> dict[str, AfterRolloutJudge]:
        """The scorers of the domains that are judged after the rollout."""
        in_turn = {domain: role for domain, role in config.judge_of.items() if domain in config.after_rollout_domains}
        late = {role: AfterRolloutJudge(engines[role], self, run) for role in in_turn.values()}
        return {domain: late[role] for domain, role in in_turn.items()}

    async def score(self, domain: str, inputs: list[RewardInput], places: Sequence[Place] = ()) -> list[RewardOutcome]:
        """One outcome per input. `places` say where their texts are, if they are not in them."""
        if places:
            said = await asyncio.to_thread(texts_at, places)
            inputs = [
                replace(sample, response_text=text.response_text) for sample, text in zip(inputs, said, strict=True)
            ]
        return await asyncio.gather(*(self._judged[domain].score(sample) for sample in inputs))


@dataclass(frozen=True, eq=False)
class AfterRolloutJudge:
    """The domains that one role's engines judge after the rollout, since they share devices with others."""

    engines: Engines
    judges: EngineJudges
    run: Callable[[Coroutine[Any, Any, Any]], Any]

    @property
    def claims(self) -> Sequence[Claim]:
        return [self.engines.everything]

    def score(self, groups: Sequence[TrajectoryGroup]) -> list[TrajectoryGroup]:
        return self.run(self._score_all(groups))

    async def _score_all(self, groups: Sequence[TrajectoryGroup]) -> list[TrajectoryGroup]:
        return await asyncio.gather(*(self._score(group) for group in groups))

    async def _score(self, group: TrajectoryGroup) -> TrajectoryGroup:
        waiting = [t for t in group.trajectories if t.failure is None]
        texts = await asyncio.to_thread(texts_of, waiting)
        inputs = [
            reward_input(group.task, said, t.finish_reason, t.facts.num_sampled)
            for t, said in zip(waiting, texts, strict=True)
        ]
        outcomes = iter(await self.judges.score(group.task.domain, inputs))
        done = tuple(t if t.failure is not None else _with(t, next(outcomes)) for t in group.trajectories)
        return replace(group, trajectories=done)


def _judged(domain: str, config: RewardConfig, engines: Engines, text: JudgeText, seed: int) -> _Judged:
    prompt, read = method_of(config)
    decode = None if text.vision is None else PictureLoader(text.vision).pictures
    model = EngineModel(f"judge-{domain}", engines.generate, text, config.generating_args, seed, decode)
    is_greedy = config.generating_args.temperature == 0  # it would say the same again
    retries = 0 if is_greedy else config.judge_max_retries
    judge: Reward = Judge(prompt, read, model, retries, judge_sees(config, text))
    reward = cast(Callable[[RewardInput], Awaitable[Score]], build_reward(config, judge))
    form = None if config.format_pattern is None else regex.compile(config.format_pattern, regex.DOTALL)
    return _Judged(reward, config.timeout_s, form, Attempts(config))


def judge_texts(config: RLVRConfig) -> dict[str, JudgeText]:
    """How each judge on engines reads, by its role."""
    data = config.actor_train.data_args
    limits = data.image_min_pixels, data.image_max_pixels
    return {role: JudgeText.load(role, worker, limits) for role, worker in config.judge_roles.items()}


def judge_sees(config: RewardConfig, text: JudgeText) -> bool:
    """Whether a judge on engines of the run is shown the pictures of a domain's rows."""
    return text.vision is not None and config.judge_sees_pictures is not False


def check_judges(config: RLVRConfig, texts: Mapping[str, JudgeText], domains: Collection[str]) -> None:
    """Raises ConfigError where a judge on engines is to be shown the pictures of these domains, and cannot be."""
    if problems := [*judge_sight_problems(config, {role: text.vision for role, text in texts.items()}, domains)]:
        raise ConfigError(*problems)
    for domain, role in config.judge_of.items():
        if domain in domains and judge_sees(config.rewards[domain], texts[role]):
            texts[role].check_pictures(role)


def _with(attempt: Trajectory, outcome: RewardOutcome) -> Trajectory:
    if outcome.failure is not None:
        return attempt.failed(outcome.failure)
    return attempt.rewarded(outcome.score, {**outcome.metrics, "reward_time_s": outcome.seconds}, outcome.extra)
