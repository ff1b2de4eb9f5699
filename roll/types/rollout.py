"""What travels during a rollout: a task, one attempt at it (trajectory), and all attempts at it (group).

A value changes class when its meaning changes:  Task -> Generation -> Trajectory -> TrajectoryGroup -> SampleBatch.
Tokens of many answers stay in the object store; a StoredGeneration or StoredTrajectory says what is known of them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate
from typing import Annotated, Any, Literal, Protocol, Self

import numpy as np

from roll.types.columns import check_columns, per_token
from roll.types.media import Media

FinishReason = Literal["stop", "length", "abort", "failed", "moved"]
FIRST_IN_LINE = -1  # the order of requests that wait for no group of the training


@dataclass(frozen=True)
class Task:
    """What to attempt: one prompt, or one environment seed.

    `task_id` names the data row for ever (same id on resume). `messages`: the conversation that the prompt shows, where
    it comes from rows; the prompt may hold less of it (data_args.truncation). `tools`: those that it offers. `payload`
    is what the reward needs besides the response, such as `ground_truth`; it never reaches the policy.
    """

    task_id: str
    domain: str
    prompt_ids: np.ndarray  # int32 [P]
    prompt_text: str = ""
    payload: Mapping[str, object] = field(default_factory=dict)
    media: Media = ()
    messages: tuple[Mapping[str, Any], ...] = ()
    question: str = ""  # what the prompt asks, without a chat template
    tools: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True)
class SamplingParams:
    """How tokens are drawn. `temperature` 0 is greedy; `top_k` 0 and `top_p` 1 are off.

    `seed` names the random stream of one request: sample `i` of a group of n draws from stream (seed, i) whatever else
    is in the batch, so that a replayed step gives the same tokens. `include_stop_string` is about the text that
    rewards and environments see; the tokens of a stop string are always there, since they were sampled.
    """

    max_new_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_new_tokens: int = 0
    stop_strings: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    include_stop_string: bool = True
    repetition_penalty: float = 1.0
    seed: int | None = None

    def __post_init__(self) -> None:
        if self.max_new_tokens < 1 or self.temperature < 0 or not 0 < self.top_p <= 1 or self.top_k < 0:
            raise ValueError(f"impossible sampling parameters: {self}")

    def seed_of(self, index: int) -> int | None:
        """For an engine that takes the samples of a group as requests of their own: 63 bits for each (seed, index)."""
        if self.seed is None:
            return None
        digest = hashlib.blake2b(f"{self.seed}/{index}".encode(), digest_size=8).digest()
        return int.from_bytes(digest, "little") >> 1


@dataclass(frozen=True)
class GenerationRequest:
    """`num_samples` answers to one prompt; the engine prefills the prompt once. They are answers `first_sample` and
    following of their group, which says what they are drawn from. Requests of one `session` build on each other, as the
    turns of an episode: they go to the same engine, which has their beginning cached. Where requests wait, those of the
    smallest `order` come first. As soon as `enough` answers are whole, if it is given, the others are cut short.
    `tells_each`: answers are handed over as they end, and not with the last one. `prefix`: what is there already of
    the one answer, which is to be continued. `begun`: what a run that ended left of the answers, by number; those that
    are "moved" are to be continued."""

    request_id: str
    prompt_ids: np.ndarray  # int32 [P]
    sampling: SamplingParams
    num_samples: int = 1
    session: str = ""
    media: Media = ()
    first_sample: int = 0
    order: int = 0
    enough: int | None = None
    tells_each: bool = False
    prefix: Generation | None = None
    begun: Mapping[int, Generation] = field(default_factory=dict)

    @property
    def samples(self) -> range:
        """The numbers of the answers in their group."""
        return range(self.first_sample, self.first_sample + self.num_samples)

    def part(self, begun: int, count: int) -> GenerationRequest:
        """`count` of the answers, without the first `begun` ones, as a request of its own."""
        name = f"{self.request_id}+{begun}" if begun else self.request_id
        return replace(self, request_id=name, num_samples=count, first_sample=self.first_sample + begun)


@dataclass(frozen=True)
class Generation:
    """One answer. `log_probs` are of the full distribution at the sampling temperature (at temperature 1 when greedy),
    but for what `roll.configs.strategy.narrowing_settings` names.

    `policy_versions[t]` is the version of the weights that sampled token t: constant unless weights changed on the way.
    `finish_reason` is "stop" when the end-of-sequence token, a stop token or a stop string ended it, "length" at the
    limit, "abort" when it was cut short (what was sampled is kept), "moved" when another engine is to go on with it.
    """

    token_ids: Annotated[np.ndarray, per_token(np.int32)]  # the end-of-sequence token included
    log_probs: Annotated[np.ndarray, per_token(np.float32)]
    policy_versions: Annotated[np.ndarray, per_token(np.int32)]
    finish_reason: FinishReason
    routes: np.ndarray | None = None  # int16 [n, layers, k]: experts of the first n tokens of prompt and answer

    def __post_init__(self) -> None:
        check_columns(self, {"tokens": len(self.token_ids)})

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)


@dataclass(frozen=True)
class RowFacts:
    """What is known of a row's tokens wherever they are."""

    num_tokens: int
    num_sampled: int  # tokens in its response mask
    num_turns: int = 1  # unbroken runs of sampled tokens
    oldest_version: int = -1  # of the weights that sampled one; -1 where nothing was sampled
    mean_version: float = -1.0  # over what was sampled


@dataclass(frozen=True)
class Place:
    """Where a stored row is: entry `row` of what two handles stand for, a SampledRows and a TextTable. The
    handles are opaque here."""

    tokens: object
    texts: object
    row: int


@dataclass(frozen=True)
class StoredGeneration:
    """One answer that stays in the object store, as the row that is made of it: prompt, then answer."""

    facts: RowFacts
    finish_reason: FinishReason
    place: Place

    @property
    def num_tokens(self) -> int:
        """Of the answer."""
        return self.facts.num_sampled


AnyGeneration = Generation | StoredGeneration


@dataclass(frozen=True)
class BegunRequest:
    """What there is of the answers to a request that is given up, by number; "moved" are those to be continued."""

    request_id: str
    prompt_ids: np.ndarray
    answers: Mapping[int, AnyGeneration]


Answered = Callable[[int, Generation], None]
"""Is told of an answer as soon as it is there, with its number in the group."""
AnyAnswered = Callable[[int, AnyGeneration], None]
"""The same on the other side of an engine's process."""


@dataclass(frozen=True)
class Turn:
    """One exchange with an environment, as a person wants to read it."""

    observation: str
    response: str
    action: str | None  # None: the response held none
    reward: float
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class RowTexts:
    """What a reward or a person reads of a row: the answer without special tokens but those that mark thinking, with
    all of them, and the turns."""

    response_text: str = ""
    raw_text: str = ""
    turns: tuple[Turn, ...] = ()


@dataclass(frozen=True, kw_only=True)
class TrajectoryBase:
    """What is known of one attempt without its tokens.

    A failed attempt (`failure` says why) is masked out of training and counted; its reward is not a number, never a
    silent 0. Nor is that of an attempt which waits for a reward that is given after the rollout. An attempt of several
    turns is one such row with the whole conversation, or several with the same `index`, one per turn (`turn`); every
    row carries the reward of the whole attempt. `turns` and `metrics` of an attempt stand on one of its rows.
    """

    reward: float
    finish_reason: FinishReason
    index: int = 0  # within the group
    turn: int = 0
    metrics: Mapping[str, float] = field(default_factory=dict)
    failure: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)  # what the reward has to say to a reader of rollouts
    turn_rewards: np.ndarray | None = None  # float32, one per unbroken run of sampled tokens; None: reward, at the end
    state_key: int = 0  # equal where an environment's state was the same (step rows)

    def rewarded(
        self, reward: float, metrics: Mapping[str, float] | None = None, extra: Mapping[str, Any] | None = None
    ) -> Self:
        """The attempt with its reward, and what is worth seeing beside it."""
        return replace(
            self, reward=reward, metrics={**self.metrics, **(metrics or {})}, extra={**self.extra, **(extra or {})}
        )

    def failed(self, reason: str) -> Self:
        """The attempt, which has no reward for this reason."""
        return replace(self, reward=float("nan"), finish_reason="failed", failure=reason)


@dataclass(frozen=True, kw_only=True)
class StoredTrajectory(TrajectoryBase):
    """One attempt whose tokens and texts stay in the object store."""

    facts: RowFacts
    place: Place


@dataclass(frozen=True, kw_only=True)
class Trajectory(TrajectoryBase):
    """One attempt with the token ids of the whole conversation; `response_mask` is True where the policy sampled."""

    input_ids: Annotated[np.ndarray, per_token(np.int32)]
    response_mask: Annotated[np.ndarray, per_token(np.bool_)]
    log_probs: Annotated[np.ndarray, per_token(np.float32)]  # 0 where response_mask is False
    policy_versions: Annotated[np.ndarray, per_token(np.int32)]  # -1 where response_mask is False
    token_rewards: Annotated[np.ndarray | None, per_token(np.float32)] = None
    routes: Annotated[np.ndarray | None, per_token(np.int16, inner=2)] = None  # experts [layers, k], -1: not known
    response_text: str = ""
    turns: tuple[Turn, ...] = ()
    media: Media = ()

    def __post_init__(self) -> None:
        check_columns(self, {"tokens": len(self.input_ids)})

    @cached_property
    def facts(self) -> RowFacts:
        """Counted in bytes: numpy would let go of the interpreter's lock each time, some microseconds of work for
        hundreds of rows, and take turns with the thread that serves the rollouts."""
        mask = self.response_mask.tobytes()
        sampled = self.policy_versions[self.policy_versions >= 0]
        oldest, newest = (-1, -1)
        if len(sampled):
            oldest, newest = int(np.minimum.reduce(sampled)), int(np.maximum.reduce(sampled))
        return RowFacts(
            num_tokens=len(mask),
            num_sampled=mask.count(1),
            num_turns=mask.startswith(b"\1") + mask.count(b"\0\1"),
            oldest_version=oldest,
            mean_version=float(oldest if oldest == newest else sampled.mean()),
        )

    @staticmethod
    def from_generation(
        prompt_ids: np.ndarray,
        generation: Generation,
        reward: float,
        *,
        index: int,
        response_text: str,
        metrics: Mapping[str, float] | None = None,
        failure: str | None = None,
        extra: Mapping[str, Any] | None = None,
        media: Media = (),
    ) -> Trajectory:
        """A single-turn trajectory: prompt (which shows `media`), then one answer. A `reward` that is not a number is
        yet to come, but for a failure."""
        (row,) = answer_rows(prompt_ids, [generation])
        return Trajectory.from_row(
            row,
            reward,
            index=index,
            response_text=response_text,
            metrics=metrics,
            failure=failure,
            extra=extra,
            media=media,
        )

    @staticmethod
    def from_row(
        row: AnswerRow,
        reward: float,
        *,
        index: int,
        response_text: str,
        metrics: Mapping[str, float] | None = None,
        failure: str | None = None,
        extra: Mapping[str, Any] | None = None,
        media: Media = (),
    ) -> Trajectory:
        """The same of a row that is made already."""
        trajectory = Trajectory(
            **row.columns,
            reward=float("nan") if failure else reward,
            finish_reason="failed" if failure else row.finish_reason,
            index=index,
            response_text=response_text,
            metrics=metrics or {},
            failure=failure,
            extra=extra or {},
            media=media,
        )
        if row.facts is not None:
            vars(trajectory)["facts"] = row.facts
        return trajectory


@dataclass(frozen=True)
class AnswerRow:
    """The tokens of prompt and answer, as `columns` of a Trajectory. `facts`, where they are known already."""

    columns: Mapping[str, Any]
    facts: RowFacts | None
    finish_reason: FinishReason


def answer_rows(prompt_ids: np.ndarray, answers: Sequence[Generation]) -> list[AnswerRow]:
    """A row for each answer to a prompt. All at once, as views of what they share: numpy takes longer over hundreds of
    small arrays than over what they hold."""
    if not answers:
        return []
    num_prompt = len(prompt_ids)
    counts = [len(answer.token_ids) for answer in answers]
    sizes = [num_prompt + count for count in counts]
    begins = [0, *accumulate(sizes)]
    ids = np.concatenate([part for a in answers for part in (prompt_ids, a.token_ids)], dtype=np.int32)
    nothing = np.zeros(num_prompt, np.float32)
    log_probs = np.concatenate([part for a in answers for part in (nothing, a.log_probs)])
    mask = np.ones(max(sizes), np.bool_)
    mask[:num_prompt] = False
    versions, version = _versions(num_prompt, max(sizes), answers)
    return [
        AnswerRow(
            {
                "input_ids": ids[begin : begin + size],
                "response_mask": mask[:size],
                "log_probs": log_probs[begin : begin + size],
                "policy_versions": own[:size],
                "routes": routes_of_row(answer.routes, size),
            },
            RowFacts(size, count, 1, version, float(version)) if version >= 0 and count else None,
            answer.finish_reason,
        )
        for begin, size, count, own, answer in zip(begins, sizes, counts, versions, answers, strict=False)
    ]


def _versions(num_prompt: int, size: int, answers: Sequence[Generation]) -> tuple[Sequence[np.ndarray], int]:
    """Of the tokens of each row, and the one that sampled all; -1 where there are several, or none."""
    sampled = np.concatenate([answer.policy_versions for answer in answers])
    version = int(sampled[0]) if len(sampled) else -1
    if not len(sampled) or (sampled == version).all():
        shared = np.full(size, version, np.int32)
        shared[:num_prompt] = -1
        return [shared] * len(answers), version
    unsampled = np.full(num_prompt, -1, np.int32)
    return [np.concatenate([unsampled, answer.policy_versions]) for answer in answers], -1


def routes_of_row(known: np.ndarray | None, num_tokens: int) -> np.ndarray | None:
    """The experts of a row's tokens [num_tokens, layers, k], of which the first ones are known; -1 for the others."""
    if known is None:
        return None
    return np.pad(known[:num_tokens], ((0, max(0, num_tokens - len(known))), (0, 0), (0, 0)), constant_values=-1)


AnyTrajectory = Trajectory | StoredTrajectory


@dataclass(frozen=True)
class TrajectoryGroup:
    """All attempts at one task, compared with each other by group-relative advantages. `surplus`: attempts beyond them
    that were begun, by how many tokens they have, and whether they are whole. `greedy_reward`: of the greedy answer to
    the same prompt, which is not trained on; NaN where that failed, None where nobody asked for one."""

    task: Task
    group_id: int
    trajectories: tuple[AnyTrajectory, ...]
    surplus: tuple[tuple[int, bool], ...] = ()
    greedy_reward: float | None = None

    @cached_property
    def attempts(self) -> tuple[AnyTrajectory, ...]:
        """The first row of every attempt."""
        return tuple({t.index: t for t in reversed(self.trajectories)}.values())[::-1]

    @cached_property
    def rewards(self) -> np.ndarray:
        """float64 [group_size]; NaN where an attempt failed."""
        return np.array([t.reward for t in self.attempts], np.float64)

    @cached_property
    def response_lengths(self) -> np.ndarray:
        """int64 [group_size]: sampled tokens of each attempt, in all its rows."""
        totals = {t.index: 0 for t in self.attempts}
        for t in self.trajectories:
            totals[t.index] += t.facts.num_sampled
        return np.array(list(totals.values()), np.int64)


Generate = Callable[[GenerationRequest], Awaitable[Sequence[AnyGeneration]]]
"""The engines: the answers to a request, in the order of their numbers."""


class GenerateEach(Protocol):
    """The engines where they are not wrapped: `answered` is told of each answer before, once, on the same event loop;
    of those that end together at once, of others soon."""

    def __call__(
        self, request: GenerationRequest, answered: AnyAnswered | None = None
    ) -> Awaitable[Sequence[AnyGeneration]]: ...


class Rollouter(Protocol):
    """How one group of trajectories is made and rewarded: the one thing in which pipelines differ."""

    async def run_group(self, task: Task, group_id: int, step: int, generate: Generate) -> TrajectoryGroup: ...
