"""A reward by a language model: asks it about one answer and reads its verdict."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Protocol

from roll.errors import RewardError
from roll.rewards.base import RewardInput, RewardResult, requires
from roll.rewards.judge.judge import NoVerdict, VerdictReader
from roll.rewards.judge.prompts import JudgePrompt

_SHOWN_CHARACTERS = 120
NOT_ASKED = "not judged: the response is empty, or holds only thinking"


@dataclass(frozen=True)
class Reply:
    """What a model said. Counts are None where it did not tell; `num_retries`: requests that failed before."""

    text: str
    num_prompt_tokens: int | None = None
    num_answer_tokens: int | None = None
    was_cut: bool = False
    num_retries: int = 0


class Model(Protocol):
    """A language model somewhere."""

    async def reply(self, text: str, max_retries: int) -> Reply:
        """The answer to one message of a user. Raises RewardError when there is none after so many retries."""
        ...


@requires()  # what the prompt takes up is required by the settings
class Judge:
    """An async reward. Where nothing follows an answer's thinking it gives the lowest score, without asking. A reply
    without a verdict is asked for again; requests that fail, and such replies, have
    `max_retries` together. Without a verdict in the end the answer failed: it is no 0."""

    def __init__(self, prompt: JudgePrompt, read: VerdictReader, model: Model, max_retries: int):
        self._prompt, self._read, self._model = prompt, read, model
        self._max_retries = max_retries

    async def __call__(self, sample: RewardInput) -> RewardResult:
        if not sample.answer.strip():
            return RewardResult(self._read.lowest, {"judge_retries": 0.0}, {"judge": NOT_ASKED})
        text = self._prompt.render(sample)
        num_retries = 0
        while True:
            reply = await self._model.reply(text, self._max_retries - num_retries)
            num_retries += reply.num_retries
            try:
                score = await asyncio.to_thread(self._read, reply.text)
            except NoVerdict as error:
                if num_retries >= self._max_retries:
                    raise RewardError(_no_verdict(reply, error, num_retries)) from None
                num_retries += 1
                continue
            return RewardResult(score, _metrics(reply, num_retries), {"judge": reply.text})


def _no_verdict(reply: Reply, error: NoVerdict, num_retries: int) -> str:
    tail = reply.text[-_SHOWN_CHARACTERS:]
    cut = ", and was cut off at its limit (generating_args.max_new_tokens)" if reply.was_cut else ""
    return f"the judge gave no verdict after {num_retries} retries: {error}{cut}. The last reply ends with {tail!r}"


def _metrics(reply: Reply, num_retries: int) -> dict[str, float]:
    counts = {"judge_prompt_tokens": reply.num_prompt_tokens, "judge_answer_tokens": reply.num_answer_tokens}
    return {"judge_retries": float(num_retries)} | {name: float(n) for name, n in counts.items() if n is not None}
