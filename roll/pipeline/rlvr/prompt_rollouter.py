"""RLVR's rollout: one prompt, several answers, a reward for each."""

import asyncio
import hashlib
import inspect
import struct
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Generic, TypeGuard, TypeVar

import numpy as np

from roll.distributed.strategy.stop_strings import answer_texts
from roll.errors import PictureError
from roll.rewards.base import RewardInput, RewardOutcome
from roll.rewards.service import RewardService
from roll.types.media import Prompt
from roll.types.rollout import (
    FIRST_IN_LINE,
    Generate,
    GenerateEach,
    Generation,
    GenerationRequest,
    LocalRow,
    SamplingParams,
    StoredRow,
    Task,
    Trajectory,
    TrajectoryGroup,
    answer_rows,
    stored_among,
)
from roll.types.texts import RowTexts
from roll.utils.background import start

# Scores of a group's answers, each begun as soon as the answer is there.

T = TypeVar("T")
ScoreAll = Callable[[Sequence[Generation]], Awaitable[Sequence[T]]]


class StreamedScores(Generic[T]):
    """`answered` is told of answers while others of the group are sampled; `of` gives what `score` made of each, and
    has those scored together of which nobody told."""

    def __init__(self, score: ScoreAll[T]):
        self._score = score
        self._begun: dict[int, asyncio.Task[T]] = {}

    def answered(self, number: int, generation: Generation) -> None:
        self._begun[number] = start(self._one(generation))

    async def of(self, answers: Mapping[int, Generation]) -> dict[int, T]:
        """Scores by the number of the answer; those that were not begun early are scored together."""
        others = [number for number in answers if number not in self._begun]
        late = await self._score([answers[number] for number in others]) if others else ()
        late_scores = dict(zip(others, late, strict=True))
        return {
            number: late_scores[number] if number in late_scores else await self._begun[number] for number in answers
        }

    def cancel(self) -> None:
        """Ends what nobody waits for any more."""
        for task in self._begun.values():
            if not task.cancel() and not task.cancelled():
                task.exception()  # of another answer is told already

    async def _one(self, generation: Generation) -> T:
        (scored,) = await self._score([generation])
        return scored


Decode = Callable[[Sequence[np.ndarray]], list[str]]
MakePrompt = Callable[[Task], Awaitable[Prompt]]
"""The prompt of a task as the model sees it. PictureError where a picture of it cannot be shown."""
ABORTED = "generation was aborted"
TRAINING = "train"


def request_seed(seed: int, purpose: str, group_id: int) -> int:
    """The seed of one group's request: the first 48 bits of blake2b over (seed, 0, group_id, purpose).

    The same on every machine and Python, and in whichever step the group is played; 48 bits so that an engine may add a
    sample's index to it and no float rounds it.
    """
    message = struct.pack("<qqq", seed, 0, group_id) + purpose.encode()
    return int.from_bytes(hashlib.blake2b(message, digest_size=6).digest(), "little")


@dataclass(frozen=True)
class PromptRollouter:
    """Samples `group_size` answers to a task's prompt and has them scored. Validation does so with its own sampling.

    With `is_compared` the prompt also gets a greedy answer, which is scored alike and not trained on. With
    `redundancy`, so many more are begun: the first `group_size` that end are the group, the engine cuts the others.

    `decode` gives the text without special tokens but those that mark thinking; `decode_raw`, if set, the text with
    all, for rewards that look at them.
    """

    rewards: RewardService
    decode: Decode
    sampling: SamplingParams
    group_size: int
    seed: int
    purpose: str = TRAINING  # its random streams hang on it
    decode_raw: Decode | None = None
    after_rollout: frozenset[str] = frozenset()  # domains whose answers are scored after the rollout
    redundancy: int = 0
    is_compared: bool = False
    max_length: int | None = None  # of prompt and answer, where the engine allows less than their lengths add up to
    make_prompt: MakePrompt | None = None  # of tasks that may show pictures

    async def run_group(self, task: Task, group_id: int, step: int, generate: Generate) -> TrajectoryGroup:
        try:
            prompt = Prompt(task.prompt_ids) if self.make_prompt is None else await self.make_prompt(task)
        except PictureError as error:
            return self._failed(task, group_id, str(error))
        if not self.is_compared:
            return await self._sampled(task, prompt, group_id, generate)
        both = self._sampled(task, prompt, group_id, generate), self._greedy_reward(task, prompt, group_id, generate)
        group, reward = await asyncio.gather(*both)
        return replace(group, greedy_reward=reward)

    def _failed(self, task: Task, group_id: int, why: str) -> TrajectoryGroup:
        """The group of a task whose pictures cannot be shown: nothing was sampled."""
        nothing = Generation(np.zeros(0, np.int32), np.zeros(0, np.float32), np.zeros(0, np.int32), "abort")
        attempts = tuple(
            Trajectory.from_generation(
                task.prompt_ids, nothing, float("nan"), index=index, response_text="", failure=why
            )
            for index in range(self.group_size)
        )
        return TrajectoryGroup(task, group_id, attempts, greedy_reward=float("nan") if self.is_compared else None)

    def _request(self, prompt: Prompt, group_id: int) -> GenerationRequest:
        room = self._room(len(prompt.ids))
        return GenerationRequest(
            request_id=f"{self.purpose}-{group_id}",
            prompt_ids=prompt.ids,
            sampling=replace(
                self.sampling,
                seed=request_seed(self.seed, self.purpose, group_id),
                max_new_tokens=room,
                min_new_tokens=min(room, self.sampling.min_new_tokens),
            ),
            num_samples=self.group_size + self.redundancy,
            media=prompt.media,
            order=group_id if self.purpose == TRAINING else FIRST_IN_LINE,
            enough=self.group_size if self.redundancy else None,
        )

    async def _greedy_reward(self, task: Task, prompt: Prompt, group_id: int, generate: Generate) -> float:
        """NaN where it failed."""
        sampled = self._request(prompt, group_id)
        greedy = replace(sampled.sampling, temperature=0.0, top_p=1.0, top_k=0)
        name = f"{sampled.request_id}-greedy"
        request = replace(sampled, request_id=name, sampling=greedy, num_samples=1, enough=None)
        ((_, outcome),) = await self._scored(task, prompt, await generate(request))
        return outcome.score

    async def _sampled(self, task: Task, prompt: Prompt, group_id: int, generate: Generate) -> TrajectoryGroup:
        request = self._request(prompt, group_id)
        scores = StreamedScores(partial(self._scored, task, prompt))
        is_early = task.domain not in self.after_rollout and self.rewards.scores_alone(task.domain)
        try:
            if is_early and tells_each(generate):
                answers = await generate(request, scores.answered)
            else:
                answers = await generate(request)
            if len(answers) != request.num_samples:
                raise ValueError(
                    f"request {request.request_id}: {len(answers)} responses, but {request.num_samples} were requested"
                )
            chosen = self._chosen(answers)
            scored = await scores.of(chosen)
        finally:
            scores.cancel()
        said = [scored[index][0] for index in chosen]
        rows = answer_rows(prompt.ids, list(chosen.values()), said, prompt.media)
        trajectories = tuple(
            _trajectory(index, answer, row, scored[index][1])
            for (index, answer), row in zip(chosen.items(), rows, strict=True)
        )
        others = [answer for index, answer in enumerate(answers) if index not in chosen]
        surplus = tuple((answer.num_tokens, not _is_cut(answer)) for answer in others)
        return TrajectoryGroup(task, group_id, trajectories, surplus)

    def _chosen(self, answers: Sequence[Generation]) -> dict[int, Generation]:
        """The group, by number: whole answers before those that were cut."""
        order = sorted(range(len(answers)), key=lambda index: _is_cut(answers[index]))
        return {index: answers[index] for index in sorted(order[: self.group_size])}

    async def _scored(
        self, task: Task, prompt: Prompt, answers: Sequence[Generation]
    ) -> Sequence[tuple[str, RewardOutcome]]:
        """Score the answers; returns the text of each, if it is here, and its outcome."""
        texts = self._texts(answers)
        scales = tuple(shown.picture.scale for shown in prompt.media)
        inputs = [
            reward_input(task, said, one.finish_reason, one.num_tokens, raw_text=said.raw_text, picture_scales=scales)
            for one, said in zip(answers, texts, strict=True)
        ]
        outcomes = await self._outcomes(task.domain, answers, inputs)
        return list(zip((said.response_text for said in texts), outcomes, strict=True))

    def _room(self, num_prompt: int) -> int:
        """Example: with max_length 40, a prompt of 32 tokens leaves 8 of 12 tokens for its answer."""
        room = self.sampling.max_new_tokens
        return room if self.max_length is None else min(room, self.max_length - num_prompt)

    def _texts(self, generations: Sequence[Generation]) -> list[RowTexts]:
        """Texts of the answers whose tokens are here; those of stored answers stay in the store."""
        here = [generation for generation in generations if generation.is_here]
        texts = answer_texts(self.decode, here, self.sampling)
        raw = texts if self.decode_raw is None else answer_texts(self.decode_raw, here, self.sampling)
        both = iter(zip(texts, raw, strict=True))
        return [RowTexts(*next(both)) if generation.is_here else RowTexts() for generation in generations]

    async def _outcomes(
        self, domain: str, generations: Sequence[Generation], inputs: Sequence[RewardInput]
    ) -> list[RewardOutcome]:
        """An answer that was cut short is not scored: it is a failed attempt."""
        if domain in self.after_rollout:
            return [RewardOutcome.failed(ABORTED) if _is_cut(g) else RewardOutcome.later() for g in generations]
        whole = [(g, sample) for g, sample in zip(generations, inputs, strict=True) if not _is_cut(g)]
        places = [*stored_among([g for g, _ in whole]).values()]
        scored = await self.rewards.score(domain, [sample for _, sample in whole], places) if whole else []
        if len(scored) != len(whole):
            raise ValueError(f"reward of {domain}: {len(scored)} outcomes for {len(whole)} responses")
        following = iter(scored)
        return [RewardOutcome.failed(ABORTED) if _is_cut(g) else next(following) for g in generations]


def tells_each(generate: Generate) -> TypeGuard[GenerateEach]:
    """False of engines that the user has wrapped (docs/adding_a_rollout_loop.md)."""
    try:
        inspect.signature(generate).bind(None, None)
    except TypeError:
        return False
    return True


def _is_cut(generation: Generation) -> bool:
    return generation.finish_reason == "abort"


def reward_input(task: Task, said: RowTexts, finish_reason: str, num_tokens: int, **more: Any) -> RewardInput:
    """A response to a task as its reward gets it."""
    return RewardInput(
        prompt_text=task.prompt_text,
        response_text=said.response_text,
        ground_truth=task.payload.get("ground_truth"),
        domain=task.domain,
        finish_reason=finish_reason,
        num_response_tokens=num_tokens,
        payload=task.payload,
        question=task.question,
        pictures=task.pictures,
        **more,
    )


def _trajectory(index: int, answer: Generation, content: LocalRow | StoredRow, outcome: RewardOutcome) -> Trajectory:
    return Trajectory(
        reward=outcome.score,  # NaN where it failed, or where it is yet to come
        finish_reason="failed" if outcome.failure else answer.finish_reason,
        index=index,
        metrics={} if outcome.waits else {**outcome.metrics, "reward_time_s": outcome.seconds},
        failure=outcome.failure,
        extra=outcome.extra,
        content=content,
    )
