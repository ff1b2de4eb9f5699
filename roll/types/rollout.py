"""Values that travel during a rollout: Task -> Generation -> Trajectory -> TrajectoryGroup -> SampleBatch. Tokens and
texts of a Generation or Trajectory are here (LocalAnswer, LocalRow) or, where there are many, in the object store
(StoredRow)."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import InitVar, dataclass, field, fields, replace
from functools import cached_property
from itertools import accumulate
from typing import Annotated, Any, Literal, Protocol, TypeVar

import numpy as np

from roll.errors import TokensElsewhere
from roll.types.columns import check_columns, per_token
from roll.types.media import Media, PictureSource, check_spans
from roll.types.texts import Turn

FinishReason = Literal["stop", "length", "abort", "failed", "moved"]
FIRST_IN_LINE = -1  # the order of requests that wait for no group of the training


@dataclass(frozen=True)
class Task:
    """A thing to attempt: one prompt, or one environment seed.

    `task_id` names the data row for ever (same id on resume). `prompt_ids` have one placeholder for each of the
    `pictures`, which are not decoded yet. `messages`: the conversation that the prompt shows, with a part {"type":
    "image"} for each picture, where it comes from rows; the prompt may hold less of it (data_args.truncation). `tools`:
    those that it offers. `payload` is what the reward needs besides the response, such as `ground_truth`; it never
    reaches the policy.
    """

    task_id: str
    domain: str
    prompt_ids: np.ndarray  # int32 [P]
    prompt_text: str = ""
    payload: Mapping[str, object] = field(default_factory=dict)
    pictures: tuple[PictureSource, ...] = ()
    messages: tuple[Mapping[str, Any], ...] = ()
    question: str = ""  # what the prompt asks, without a chat template
    tools: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True)
class SamplingParams:
    """How tokens are drawn. `temperature` 0 is greedy; `top_k` 0 and `top_p` 1 are off. Sample `i` of a group draws
    from stream (seed, i) whatever else is in the batch. `include_stop_string` is about the text that rewards and
    environments see; the tokens of a stop string are always there, since they were sampled."""

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
        """Seed of sample `index`, for an engine that takes the samples of a group as separate requests: 63 bits."""
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
    `tells_each`: answers are handed over as they end, and not with the last one. `prefix`: what is there
    already of the one answer, which is to be continued."""

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

    @property
    def samples(self) -> range:
        """The numbers of the answers in their group."""
        return range(self.first_sample, self.first_sample + self.num_samples)

    def part(self, begun: int, count: int) -> GenerationRequest:
        """`count` of the answers, without the first `begun` ones, as a request of its own."""
        name = f"{self.request_id}+{begun}" if begun else self.request_id
        return replace(self, request_id=name, num_samples=count, first_sample=self.first_sample + begun)


@dataclass(frozen=True)
class RowFacts:
    """Facts about a row's tokens, known wherever the tokens are stored."""

    num_tokens: int
    num_sampled: int  # tokens in its response mask
    num_turns: int = 1  # unbroken runs of sampled tokens
    oldest_version: int = -1  # of the weights that sampled one; -1 where nothing was sampled
    mean_version: float = -1.0  # over what was sampled


@dataclass(frozen=True)
class Place:
    """The place of a stored row: entry `row` of what two opaque handles stand for, a SampledRows and a TextTable."""

    tokens: object
    texts: object
    row: int


@dataclass(frozen=True)
class StoredRow(Place):
    """Content that stays in the object store: where it is, and what is known of it without reading it."""

    facts: RowFacts

    @property
    def num_sampled(self) -> int:
        return self.facts.num_sampled

    @property
    def oldest_version(self) -> int:
        return self.facts.oldest_version


@dataclass(frozen=True)
class LocalAnswer:
    """Content of a Generation whose tokens are here."""

    token_ids: Annotated[np.ndarray, per_token(np.int32)]
    log_probs: Annotated[np.ndarray, per_token(np.float32)]
    policy_versions: Annotated[np.ndarray, per_token(np.int32)]
    routes: np.ndarray | None = None

    def __post_init__(self) -> None:
        check_columns(self, {"tokens": len(self.token_ids)}, "Generation")

    @property
    def num_sampled(self) -> int:
        return len(self.token_ids)

    @property
    def oldest_version(self) -> int:
        return int(self.policy_versions.min())


_ANSWER_COLUMNS = tuple(column.name for column in fields(LocalAnswer))
_ABSENT: Any = object()  # an argument that was not passed; None is a value of some
_set = object.__setattr__  # in constructors of frozen values


@dataclass(frozen=True)
class Generation:
    """One answer. Its tokens are here, or stay in the object store as the row that is made of it: prompt, then answer.

    `Generation(token_ids, log_probs, policy_versions, finish_reason, routes)` makes one whose tokens are here:

    - `token_ids` int32 [n], the end-of-sequence token included
    - `log_probs` float32 [n], of the full distribution at the sampling temperature (at temperature 1 when greedy), but
      for what `roll.configs.plan.engine_limits.narrowing_settings` names
    - `policy_versions` int32 [n], the version of the weights that sampled each token: constant unless weights changed
      on the way
    - `routes` int16 [m, layers, k], the experts of the first m tokens of prompt and answer, or None

    Where `is_here` is False, reading these raises TokensElsewhere.

    `finish_reason` is "stop" when the end-of-sequence token, a stop token or a stop string ended it, "length" at the
    limit, "abort" when it was cut short (what was sampled is kept), "moved" when another engine is to go on with it.
    """

    content: LocalAnswer | StoredRow
    finish_reason: FinishReason

    def __init__(
        self,
        token_ids: np.ndarray = _ABSENT,
        log_probs: np.ndarray = _ABSENT,
        policy_versions: np.ndarray = _ABSENT,
        finish_reason: FinishReason = _ABSENT,
        routes: np.ndarray | None = _ABSENT,
        *,
        content: LocalAnswer | StoredRow | None = None,
    ):
        """Takes columns or their content. `dataclasses.replace` passes both where it changes columns."""
        if finish_reason is _ABSENT:
            raise TypeError("Generation: finish_reason is missing")
        if content is None or not token_ids is log_probs is policy_versions is routes is _ABSENT:
            passed = zip(_ANSWER_COLUMNS, (token_ids, log_probs, policy_versions, routes), strict=True)
            columns: dict[str, Any] = {name: value for name, value in passed if value is not _ABSENT}
            content = LocalAnswer(**columns) if content is None else replace(_local(content), **columns)
        _set(self, "content", content)
        _set(self, "finish_reason", finish_reason)

    @property
    def is_here(self) -> bool:
        return not isinstance(self.content, StoredRow)

    @property
    def num_tokens(self) -> int:
        """The number of tokens of the answer, wherever they are."""
        return self.content.num_sampled

    @property
    def oldest_version(self) -> int:
        """The oldest version of the weights that sampled a token of it, of which there must be one."""
        return self.content.oldest_version

    @property
    def token_ids(self) -> np.ndarray:
        return _local(self.content).token_ids

    @property
    def log_probs(self) -> np.ndarray:
        return _local(self.content).log_probs

    @property
    def policy_versions(self) -> np.ndarray:
        return _local(self.content).policy_versions

    @property
    def routes(self) -> np.ndarray | None:
        return _local(self.content).routes


Answered = Callable[[int, Generation], None]
"""Is told of an answer as soon as it is there, with its number in the group."""


@dataclass(frozen=True, kw_only=True)
class LocalRow:
    """Content of a Trajectory whose tokens are here: those of the whole conversation, what is to be read of them, and
    what they show. `facts` are counted when it is made, unless they are `known` already."""

    input_ids: Annotated[np.ndarray, per_token(np.int32)]
    response_mask: Annotated[np.ndarray, per_token(np.bool_)]  # True where the policy sampled
    log_probs: Annotated[np.ndarray, per_token(np.float32)]  # 0 where response_mask is False
    policy_versions: Annotated[np.ndarray, per_token(np.int32)]  # -1 where response_mask is False
    token_rewards: Annotated[np.ndarray | None, per_token(np.float32)] = None
    routes: Annotated[np.ndarray | None, per_token(np.int16, inner=2)] = None  # experts [layers, k], -1: not known
    response_text: str = ""
    turns: tuple[Turn, ...] = ()
    media: Media = ()
    known: InitVar[RowFacts | None] = None
    facts: RowFacts = field(init=False)

    def __post_init__(self, known: RowFacts | None) -> None:
        check_columns(self, {"tokens": len(self.input_ids)}, "Trajectory")
        check_spans(self.media, len(self.input_ids), "Trajectory.media")
        _set(self, "facts", known or _facts(self.response_mask, self.policy_versions))


def _facts(response_mask: np.ndarray, policy_versions: np.ndarray) -> RowFacts:
    """Counted in bytes: numpy would let go of the interpreter's lock each time, some microseconds of work for hundreds
    of rows, and take turns with the thread that serves the rollouts."""
    mask = response_mask.tobytes()
    sampled = policy_versions[policy_versions >= 0]
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


@dataclass(frozen=True, kw_only=True)
class Trajectory:
    """One attempt. Its tokens and texts are here, or stay in the object store; `facts` are known of both.

    Where they are here, the fields of LocalRow are attributes and arguments of it too: `input_ids`, `response_mask`,
    `log_probs`, `policy_versions`, `token_rewards`, `routes`, `response_text`, `turns`, `media`. Where `is_here` is
    False, reading these raises TokensElsewhere.

    A failed attempt (`failure` says why) is masked out of training and counted; its reward is not a number, never a
    silent 0. Nor is that of an attempt which waits for a reward that is given after the rollout. An attempt of several
    turns is one such row with the whole conversation, or several with the same `index`, one per turn (`turn`); every
    row carries the reward of the whole attempt, or of its `side`. `turns` and `metrics` stand on one of the rows.
    """

    reward: float
    finish_reason: FinishReason
    index: int  # within the group
    turn: int
    metrics: Mapping[str, float]
    failure: str | None
    extra: Mapping[str, Any]  # what the reward has to say to a reader of rollouts
    turn_rewards: np.ndarray | None  # float32, one per unbroken run of sampled tokens; None: reward, at the end
    state_key: int  # equal where an environment's state was the same (step rows)
    side: int  # place of the side that the row is of; 0 where there is one
    content: LocalRow | StoredRow

    def __init__(
        self,
        *,
        reward: float,
        finish_reason: FinishReason,
        index: int = 0,
        turn: int = 0,
        metrics: Mapping[str, float] | None = None,
        failure: str | None = None,
        extra: Mapping[str, Any] | None = None,
        turn_rewards: np.ndarray | None = None,
        state_key: int = 0,
        side: int = 0,
        content: LocalRow | StoredRow | None = None,
        **columns: Any,
    ):
        """Takes `columns`, fields of LocalRow, or their content; `dataclasses.replace` passes both."""
        if content is None:
            content = LocalRow(**columns)
        elif columns:
            content = replace(_local(content), **columns)
        known: dict[str, Any] = {"reward": reward, "finish_reason": finish_reason, "index": index, "turn": turn}
        known |= {"metrics": {} if metrics is None else metrics, "extra": {} if extra is None else extra}
        known |= {"failure": failure, "turn_rewards": turn_rewards, "state_key": state_key, "side": side}
        for name, value in {**known, "content": content}.items():
            _set(self, name, value)

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
        yet to come, but for a failure. Of an answer in the object store, prompt, text and media are there as well."""
        (content,) = answer_rows(prompt_ids, [generation], [response_text], media)
        return Trajectory(
            reward=float("nan") if failure else reward,
            finish_reason="failed" if failure else generation.finish_reason,
            index=index,
            metrics=metrics,
            failure=failure,
            extra=extra,
            content=content,
        )

    def rewarded(
        self, reward: float, metrics: Mapping[str, float] | None = None, extra: Mapping[str, Any] | None = None
    ) -> Trajectory:
        """The attempt with its reward, and what is worth seeing beside it."""
        return replace(
            self, reward=reward, metrics={**self.metrics, **(metrics or {})}, extra={**self.extra, **(extra or {})}
        )

    def failed(self, reason: str) -> Trajectory:
        return replace(self, reward=float("nan"), finish_reason="failed", failure=reason)

    @property
    def is_here(self) -> bool:
        return not isinstance(self.content, StoredRow)

    @property
    def facts(self) -> RowFacts:
        return self.content.facts

    @property
    def here(self) -> LocalRow:
        """Tokens, texts and media. Raises TokensElsewhere where they are in the object store."""
        return _local(self.content)

    @property
    def input_ids(self) -> np.ndarray:
        return _local(self.content).input_ids

    @property
    def response_mask(self) -> np.ndarray:
        return _local(self.content).response_mask

    @property
    def log_probs(self) -> np.ndarray:
        return _local(self.content).log_probs

    @property
    def policy_versions(self) -> np.ndarray:
        return _local(self.content).policy_versions

    @property
    def token_rewards(self) -> np.ndarray | None:
        return _local(self.content).token_rewards

    @property
    def routes(self) -> np.ndarray | None:
        return _local(self.content).routes

    @property
    def response_text(self) -> str:
        return _local(self.content).response_text

    @property
    def turns(self) -> tuple[Turn, ...]:
        return _local(self.content).turns

    @property
    def media(self) -> Media:
        return _local(self.content).media


Local = TypeVar("Local", LocalAnswer, LocalRow)


def _local(content: Local | StoredRow) -> Local:
    if isinstance(content, StoredRow):
        raise TokensElsewhere(
            "the tokens and texts of this attempt are in the object store: those of large replies do not pass the "
            "driver. What is known without them: reward, finish_reason, metrics, facts (num_tokens, num_sampled, "
            "versions). If they are needed here, get them with roll.distributed.executor.step_rows: "
            "fetched([trajectories]) gives trajectories with all, texts_of(trajectories) the texts alone; "
            "Trajectory.from_generation makes a trajectory of a response. Where is_here is True they are here already."
        )
    return content


def stored_among(values: Sequence[Generation] | Sequence[Trajectory]) -> dict[int, StoredRow]:
    """The content of those that are in the object store, by their numbers in the sequence."""
    return {i: value.content for i, value in enumerate(values) if isinstance(value.content, StoredRow)}


def answer_rows(
    prompt_ids: np.ndarray, answers: Sequence[Generation], texts: Sequence[str] = (), media: Media = ()
) -> list[LocalRow | StoredRow]:
    """The row of each answer to a prompt that shows `media`. `texts`: what each says, if it is known. What is in the
    object store is such a row already, with text and media."""
    stored = stored_among(answers)
    texts = texts or [""] * len(answers)
    here = [i for i in range(len(answers)) if i not in stored]
    made = iter(local_rows(prompt_ids, [answers[i] for i in here], [texts[i] for i in here], media))
    return [stored[i] if i in stored else next(made) for i in range(len(answers))]


def local_rows(
    prompt_ids: np.ndarray, answers: Sequence[Generation], texts: Sequence[str], media: Media
) -> list[LocalRow]:
    """The rows of answers that are here. All at once, as views of what they share: numpy takes longer over hundreds of
    small arrays than over what they hold."""
    if not answers:
        return []
    num_prompt = len(prompt_ids)
    counts = [answer.num_tokens for answer in answers]
    sizes = [num_prompt + count for count in counts]
    begins = [0, *accumulate(sizes)]
    ids = np.concatenate([part for a in answers for part in (prompt_ids, a.token_ids)], dtype=np.int32)
    nothing = np.zeros(num_prompt, np.float32)
    log_probs = np.concatenate([part for a in answers for part in (nothing, a.log_probs)])
    mask = np.ones(max(sizes), np.bool_)
    mask[:num_prompt] = False
    versions, version = _versions(num_prompt, max(sizes), answers)
    return [
        LocalRow(
            input_ids=ids[begin : begin + size],
            response_mask=mask[:size],
            log_probs=log_probs[begin : begin + size],
            policy_versions=own[:size],
            routes=routes_of_row(answer.routes, size),
            response_text=text,
            media=media,
            known=RowFacts(size, count, 1, version, float(version)) if version >= 0 and count else None,
        )
        for begin, size, count, own, answer, text in zip(begins, sizes, counts, versions, answers, texts, strict=False)
    ]


def _versions(num_prompt: int, size: int, answers: Sequence[Generation]) -> tuple[Sequence[np.ndarray], int]:
    """Versions of the tokens of each row, and the one version that sampled all; -1 if there are several, or none."""
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


@dataclass(frozen=True)
class TrajectoryGroup:
    """All attempts at one task, compared with each other by group-relative advantages. `surplus`: attempts beyond them
    that were begun, by how many tokens they have, and whether they are whole. `greedy_reward`: of the greedy answer to
    the same prompt, which is not trained on; NaN where that failed, None where nobody asked for one."""

    task: Task
    group_id: int
    trajectories: tuple[Trajectory, ...]
    surplus: tuple[tuple[int, bool], ...] = ()
    greedy_reward: float | None = None

    @cached_property
    def attempts(self) -> tuple[Trajectory, ...]:
        """The first row of every attempt."""
        return tuple({t.index: t for t in reversed(self.trajectories)}.values())[::-1]

    @property
    def by_side(self) -> tuple[TrajectoryGroup, ...]:
        """The rows of each side that has some, as groups of their own: what is compared with each other. Failed
        attempts are in all of them. The group itself where there is one side; it keeps none of them, as it would hold
        itself, and the handles on its tokens, until cycles are collected."""
        sides = sorted({t.side for t in self.trajectories if t.failure is None})
        if sides in ([], [0]):
            return (self,)
        return tuple(
            replace(self, trajectories=tuple(t for t in self.trajectories if t.side == side or t.failure is not None))
            for side in sides
        )

    @cached_property
    def rewards(self) -> np.ndarray:
        """float64 [group_size]; NaN where an attempt failed. Of attempts with several sides, that of the first."""
        return np.array([t.reward for t in self.attempts], np.float64)

    @cached_property
    def response_lengths(self) -> np.ndarray:
        """int64 [group_size]: sampled tokens of each attempt, in all its rows."""
        totals = {t.index: 0 for t in self.attempts}
        for t in self.trajectories:
            totals[t.index] += t.facts.num_sampled
        return np.array(list(totals.values()), np.int64)


Generate = Callable[[GenerationRequest], Awaitable[Sequence[Generation]]]
"""Callable that samples a request; returns one Generation per sample, in order."""


class GenerateEach(Protocol):
    """The engines, unless the user has wrapped them. `answered` is called once for each response."""

    def __call__(
        self, request: GenerationRequest, answered: Answered | None = None
    ) -> Awaitable[Sequence[Generation]]: ...


class Rollouter(Protocol):
    """How one group of trajectories is made and rewarded: the one thing in which pipelines differ."""

    async def run_group(self, task: Task, group_id: int, step: int, generate: Generate) -> TrajectoryGroup: ...
