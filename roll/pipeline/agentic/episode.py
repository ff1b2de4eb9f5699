"""One episode, played: reset, then prompt, answer, action and step until it is over."""

import asyncio
import hashlib
import logging
import math
import struct
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from roll.distributed.strategy.stop_strings import answer_texts
from roll.envs.base import SUCCESS, VALID, ActionPattern
from roll.envs.build import build_env
from roll.envs.config import AGENT_NATIVE, VL_TRAJECTORY, EnvConfig
from roll.envs.tools.toolset import ToolsLost
from roll.errors import EnvError, StrategyError
from roll.pipeline.agentic.env_calls import EnvHang, EnvThread, EnvView, close_env, reset_env, step_env
from roll.pipeline.agentic.observations import EnvCrash, Observation
from roll.pipeline.agentic.sample_forms import ChatEncoder, Form, PlayedTurn, Prompt, Scene, state_key
from roll.types.rollout import (
    FIRST_IN_LINE,
    Generate,
    Generation,
    GenerationRequest,
    SamplingParams,
    Trajectory,
    TrajectoryGroup,
)
from roll.types.texts import Turn

# Limits on the time of an episode, which do not count what the engines take.


@contextmanager
def stopped(clock: asyncio.Timeout) -> Iterator[None]:
    """The time that the clock allows does not run inside: engines may stand still for new weights, or be away.

    Example: of 60 s, 40 are left when an answer is asked for, and 40 when it is there, an hour later.
    """
    due = clock.when()
    if due is None:
        yield
        return
    loop = asyncio.get_running_loop()
    remaining = due - loop.time()
    clock.reschedule(None)
    try:
        yield
    finally:
        clock.reschedule(loop.time() + remaining)


# What a step's episodes were like, per tag.

CRASHES, HANGS = "env_crashes", "env_hangs"
_SUMMED = {CRASHES: "crashes", HANGS: "hangs"}
"""Metrics of an episode that are summed up over all tags, under these names."""


def mean_metrics(turns: Sequence[Turn]) -> dict[str, float]:
    """An episode's metrics: means over its turns, of success the value after the last turn."""
    values: dict[str, list[float]] = defaultdict(list)
    for turn in turns:
        for name, value in turn.metrics.items():
            values[name].append(value)
    return {name: float(v[-1] if name == SUCCESS else np.mean(v)) for name, v in values.items()}


def episode_metrics(groups: Sequence[TrajectoryGroup], prefix: str) -> dict[str, float]:
    """`<prefix>/<tag>/<name>_mean` over the episodes that did not fail, the share of those that failed, and how many
    environments crashed or hung, retries included. `<prefix>/success_mean` is over all tags."""
    by_tag: dict[str, list[Trajectory]] = defaultdict(list)
    for group in groups:
        by_tag[group.task.domain] += group.attempts
    metrics: dict[str, float] = {}
    for tag, attempts in sorted(by_tag.items()):
        metrics |= {f"{prefix}/{tag}/{name}": value for name, value in _of_tag(attempts).items()}
    every = [attempt.metrics for attempts in by_tag.values() for attempt in attempts]
    for name, key in _SUMMED.items():
        metrics[f"{prefix}/{key}"] = sum(of.get(name, 0.0) for of in every)
    if wins := [of[SUCCESS] for of in every if SUCCESS in of]:
        metrics[f"{prefix}/success_mean"] = float(np.mean(wins))
    return metrics


def _of_tag(attempts: Sequence[Trajectory]) -> dict[str, float]:
    played = [attempt for attempt in attempts if attempt.failure is None]
    metrics = {"failed_fraction": 1 - len(played) / len(attempts)}
    if not played:
        return metrics
    metrics["return_mean"] = float(np.mean([attempt.reward for attempt in played]))
    values: dict[str, list[float]] = defaultdict(list)
    for attempt in played:
        for name, value in attempt.metrics.items():
            values[name].append(value)
    return metrics | {f"{name}_mean": float(np.mean(v)) for name, v in sorted(values.items()) if name not in _SUMMED}


TRAINING = "train"
WHOLE_ANSWER = "(.*)"


@dataclass(frozen=True)
class EpisodeJob:
    """Job for one episode: attempt `index` of a group, in the environment of `tag` with `env_seed`."""

    tag: str
    env_seed: int
    purpose: str  # TRAINING, or what is validated
    group_id: int
    index: int

    @property
    def name(self) -> str:
        return f"{self.purpose}-{self.group_id}-{self.index}"

    @property
    def order(self) -> int:
        return self.group_id if self.purpose == TRAINING else FIRST_IN_LINE


@dataclass(frozen=True)
class EpisodeRules:
    """How the environments of one tag are played. `max_answer_tokens` None: as long as there is room."""

    config: EnvConfig
    sampling: SamplingParams
    max_length: int
    max_answer_tokens: int | None
    format_penalty: float
    seed: int
    step_timeout_s: float | None
    episode_timeout_s: float | None
    retries: int


@dataclass(frozen=True)
class AbortedEpisode:
    """Result of an episode that was stopped: how many tokens the policy had sampled in the turns before."""

    num_tokens: int


@dataclass
class Counts:
    """Counts of failures on the way, and of tokens sampled since the last restart."""

    crashes: int = 0
    hangs: int = 0
    num_tokens: int = 0

    def metrics(self) -> dict[str, float]:
        return {CRASHES: float(self.crashes), HANGS: float(self.hangs)}


logger = logging.getLogger(__name__)


class Player(ABC):
    """Plays episodes of one tag; many at once. `who` plays them, for messages."""

    who = "episode"

    def __init__(self, rules: EpisodeRules):
        self._rules = rules
        self.num_abandoned_threads = 0
        self._said_again = False

    async def play(self, job: EpisodeJob, counts: Counts | None = None) -> list[Trajectory]:
        """The rows of the episode. What crashes or hangs is begun anew, up to `retries` times; after that the one row
        says why it failed. `counts` are kept up to date on the way."""
        counts = counts or Counts()
        failure, attempt = "", 0
        for attempt in range(1 + self._rules.retries):
            counts.num_tokens = 0
            if attempt and not self._said_again:  # the metrics count the others
                self._said_again = True
                logger.warning("%s failed and is played again: %s", job.name, failure)
            try:
                return await self._attempt(job, attempt, counts)
            except (EnvCrash, ToolsLost) as error:
                counts.crashes += 1
                failure = str(error)
            except EnvHang as error:
                counts.hangs += 1
                failure = str(error)
            except TimeoutError:
                counts.hangs += 1
                failure = f"the {self.who} took longer than {self._rules.episode_timeout_s:g} s"
                break
            except (EnvError, StrategyError) as error:
                failure = str(error)
                break
        failed = failed_row(job.index, f"{job.tag}: {failure}", counts.metrics())
        return [replace(failed, extra=self._extra(job, attempt))]

    @abstractmethod
    async def _attempt(self, job: EpisodeJob, attempt: int, counts: Counts) -> list[Trajectory]:
        """The rows. Raises TimeoutError beyond episode_timeout_s."""

    def _extra(self, job: EpisodeJob, attempt: int) -> dict[str, Any]:
        return {}


class EpisodePlayer(Player):
    """Asks the policy for what an environment is to do."""

    def __init__(
        self,
        rules: EpisodeRules,
        encoder: ChatEncoder,
        form: Form,
        generate: Generate,
        turnstile: asyncio.Semaphore | None = None,
    ):
        super().__init__(rules)
        self._encoder, self._form, self._generate, self._turnstile = encoder, form, generate, turnstile
        self._is_native = rules.config.env_manager_cls == AGENT_NATIVE
        self._pattern = ActionPattern(WHOLE_ANSWER if self._is_native else rules.config.action_pattern)
        vision = encoder.vision if rules.config.env_manager_cls == VL_TRAJECTORY else None
        self._sizes = None if vision is None else vision.sizes

    async def _attempt(self, job: EpisodeJob, attempt: int, counts: Counts) -> list[Trajectory]:
        thread = EnvThread(job.name, self._turnstile)
        try:
            async with asyncio.timeout(self._rules.episode_timeout_s) as clock:
                return await self._played(job, attempt, thread, counts, clock)
        except TimeoutError:
            thread.is_hung = thread.was_left_busy
            raise
        finally:
            self.num_abandoned_threads += thread.is_hung

    async def _played(
        self, job: EpisodeJob, attempt: int, thread: EnvThread, counts: Counts, clock: asyncio.Timeout
    ) -> list[Trajectory]:
        env: Any = None
        try:
            env = await self._call(thread, "the constructor", build_env, self._rules.config)
            view = EnvView(self._is_native, self._sizes, f"{job.tag}, seed {job.env_seed}")
            first, of_class = await self._call(thread, "reset", reset_env, env, job.env_seed, view)
            instruction = self._rules.config.env_instruction or of_class
            turns, ended, is_cut = await self._turns(job, attempt, thread, env, view, first, instruction, counts, clock)
        finally:
            thread.close(None if env is None else lambda: close_env(env))
        return self._finished(job, turns, ended, is_cut, counts)

    async def _turns(
        self,
        job: EpisodeJob,
        attempt: int,
        thread: EnvThread,
        env: Any,
        view: EnvView,
        observed: Observation,
        instruction: str,
        counts: Counts,
        clock: asyncio.Timeout,
    ) -> tuple[list[PlayedTurn], bool, bool]:
        """The turns, whether the environment ended them, and whether something did not fit."""
        rules, turns = self._rules, []
        longest = rules.max_answer_tokens or rules.max_length
        is_cut = False
        for number in range(rules.config.max_steps):
            scene = Scene(observed, rules.config.max_steps, longest, instruction, turns)
            prompt = self._form.prompt(scene)
            if prompt is None:
                return turns, False, True
            is_cut = is_cut or prompt.is_cut
            with stopped(clock):
                generation = await self._answer(job, attempt, number, prompt, longest)
            counts.num_tokens += generation.num_tokens
            (response,) = answer_texts(self._decode, [generation], rules.sampling)
            answer = self._encoder.answer_opening + response
            says_picture = not self._encoder.placeholders.isdisjoint(generation.token_ids[-1:].tolist())
            action = None if says_picture else self._pattern.find(answer)
            step, after = await self._call(thread, "step", step_env, env, answer, action, view)
            metrics = dict(step.metrics) | {"answer_cut": float(generation.finish_reason == "length")}
            reward = step.reward + (0.0 if step.metrics[VALID] else rules.format_penalty)
            num_pictures = len(prompt.media) - (len(turns[-1].prompt.media) if turns else 0)
            turn = Turn(observed.text, response, action, reward, metrics, num_pictures)
            turns.append(PlayedTurn(prompt, generation, turn, observed.state))
            observed = after
            if step.terminated or step.truncated or says_picture:  # nothing could stand in that picture's place
                return turns, step.terminated, is_cut
        return turns, False, is_cut

    async def _answer(self, job: EpisodeJob, attempt: int, number: int, prompt: Prompt, longest: int) -> Generation:
        """Ask the policy for its answer in turn `number`. Raises EnvError if that came to nothing."""
        rules = self._rules
        room = min(longest, rules.max_length - len(prompt.ids))
        sampling = replace(
            rules.sampling,
            max_new_tokens=room,
            min_new_tokens=min(rules.sampling.min_new_tokens, room),
            seed=turn_seed(rules.seed, job, number, attempt),
        )
        name = f"{job.name}-{attempt}"
        request = GenerationRequest(
            f"{name}-{number}", prompt.ids, sampling, session=name, order=job.order, media=prompt.media
        )
        (generation,) = await self._generate(request)
        if generation.finish_reason == "abort" or not len(generation.token_ids):
            raise EnvError("generation was aborted")
        return generation

    async def _call(self, thread: EnvThread, what: str, function: Any, *arguments: Any) -> Any:
        return await thread.call(what, function, *arguments, timeout_s=self._rules.step_timeout_s)

    def _decode(self, answers: Sequence[np.ndarray]) -> list[str]:
        return [self._encoder.decode(ids) for ids in answers]

    def _finished(
        self, job: EpisodeJob, turns: Sequence[PlayedTurn], ended: bool, is_cut: bool, counts: Counts
    ) -> list[Trajectory]:
        rows = self._form.rows(turns)
        played_turns = tuple(played.turn for played in turns)
        total = float(sum(turn.reward for turn in played_turns))
        metrics = {
            **mean_metrics(played_turns),
            "num_turns": float(len(played_turns)),
            "env_ended": float(ended),
            "sequence_cut": float(is_cut),
            **counts.metrics(),
        }
        finished = [
            replace(
                row,
                reward=total,
                index=job.index,
                finish_reason="length" if is_cut else played.generation.finish_reason,
                state_key=state_key(played.state),
            )
            for row, played in zip(rows, turns, strict=False)
        ]
        if len(finished) == 1 and len(turns) > 1 and not is_cut:
            finished[0] = replace(finished[0], finish_reason="stop")
        text = "\n".join(f"{turn.response}\n[{turn.reward:+.3g}]" for turn in played_turns)
        finished[0] = replace(finished[0], metrics=metrics, turns=played_turns, response_text=text)
        return finished


def turn_seed(seed: int, job: EpisodeJob, turn: int, attempt: int) -> int:
    """The sampling seed of one answer: 48 bits that depend on all of these, and on nothing else."""
    message = struct.pack("<qqqqqq", seed, 0, job.group_id, job.index, turn, attempt) + job.purpose.encode()
    return int.from_bytes(hashlib.blake2b(message, digest_size=6).digest(), "little")


def failed_row(index: int, failure: str, metrics: dict[str, float]) -> Trajectory:
    """A row with nothing to train on."""
    return Trajectory(
        input_ids=np.zeros(1, np.int32),
        response_mask=np.zeros(1, bool),
        log_probs=np.zeros(1, np.float32),
        policy_versions=np.full(1, -1, np.int32),
        reward=math.nan,
        finish_reason="failed",
        index=index,
        metrics=metrics,
        failure=failure,
    )
