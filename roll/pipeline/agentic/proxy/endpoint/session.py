"""A session: one attempt of a program, its limits, and the way from a request to sampled tokens."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from roll.configs.limits import LARGEST_REWARD
from roll.distributed.strategy.stop_strings import answer_texts
from roll.errors import StrategyError, describe
from roll.pipeline.agentic.env_manager.episode import Counts, EpisodeJob, EpisodeRules, turn_seed
from roll.pipeline.agentic.proxy.endpoint.errors import Refusal
from roll.pipeline.agentic.proxy.transcript.message import ChatCall
from roll.pipeline.agentic.proxy.transcript.parse import Parser
from roll.pipeline.agentic.proxy.transcript.render import RenderRefused
from roll.pipeline.agentic.proxy.transcript.transcript import Prepared, Transcript
from roll.pipeline.agentic.proxy.transcript.tree import Answer
from roll.types.rollout import Generate, Generation, GenerationRequest
from roll.utils.background import start

MOST_OPEN = 64  # requests of one session
MOST_SAMPLES = 128  # n
MOST_REFUSED = 20  # one after the other: the program does not listen
_MOST_TURNS = 1 << 20


@dataclass(frozen=True)
class Reply:
    """What a request got: answers with their texts parsed, and how many tokens the prompt has."""

    answers: tuple[Answer, ...]
    num_prompt: int
    model: str = "policy"

    @property
    def num_sampled(self) -> int:
        return sum(answer.generation.num_tokens for answer in self.answers)

    def deliver(self) -> None:
        for answer in self.answers:
            answer.delivered = True


@dataclass(eq=False, repr=False)
class Exchange:
    """A request on its way. `left`: its client went away before it had the reply."""

    work: asyncio.Task[Reply]
    left: bool = False


@dataclass(eq=False, repr=False)
class Session:
    """`deadline` stands still while at least one request is with the engines."""

    session_id: str
    key: str
    job: EpisodeJob
    attempt: int
    rules: EpisodeRules
    transcript: Transcript
    parser: Parser
    generate: Generate
    counts: Counts
    task: Mapping[str, Any]
    retry_window_s: float = 30.0
    deadline: asyncio.Timeout | None = None
    reward: float | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    failure: str = ""
    error: BaseException | None = None
    is_closed: bool = False
    num_answers: int = 0
    num_requests: int = 0
    num_refused: int = 0
    over: asyncio.Event = field(default_factory=asyncio.Event)
    """The turn limit was met, or nothing more is to come."""
    _exchanges: dict[bytes, Exchange] = field(default_factory=dict)
    _open: set[Exchange] = field(default_factory=set)
    _left_s: float = 0.0
    _num_paused: int = 0

    def exchange(self, call: ChatCall, digest: bytes, is_retry: bool) -> Exchange:
        """The way of a request. One whose client went away, or says that it asks again, joins that of the same body,
        for `retry_window_s` after its end; any other is a new sample."""
        known = self._exchanges.get(digest)
        if known is not None and (is_retry or known.left):
            self.transcript.counts["retries"] += 1
            known.left = False
            return known
        if len(self._open) >= MOST_OPEN:
            raise Refusal(429, f"The session has {MOST_OPEN} requests open.")
        exchange = Exchange(start(self.complete(call)))
        self._exchanges[digest] = exchange
        self._open.add(exchange)
        exchange.work.add_done_callback(lambda work: self._ended(digest, exchange))
        return exchange

    def _ended(self, digest: bytes, exchange: Exchange) -> None:
        self._open.discard(exchange)
        if not exchange.work.cancelled():
            exchange.work.exception()  # whoever waits gets it; if nobody does, it is nobody's

        def forget() -> None:
            if self._exchanges.get(digest) is exchange:
                del self._exchanges[digest]

        asyncio.get_running_loop().call_later(self.retry_window_s, forget)

    def leave(self, exchange: Exchange) -> None:
        """The client went away: the request goes on for `retry_window_s`, in case that it asks again."""
        exchange.left = True

        def give_up() -> None:
            if exchange.left:
                exchange.work.cancel()

        asyncio.get_running_loop().call_later(self.retry_window_s, give_up)

    async def complete(self, call: ChatCall) -> Reply:
        """Samples the answers to a request and adds them to the transcript. Raises Refusal."""
        self._check(call)
        try:
            prepared = self.transcript.prepare(call)
        except RenderRefused as refusal:
            raise Refusal(400, str(refusal)) from None
        room = self.rules.max_length - len(prepared.prompt_ids)
        if room < 1:
            raise Refusal(
                400,
                f"prompt is too long: {len(prepared.prompt_ids)} tokens > {self.rules.max_length - 1} maximum",
                "context_length_exceeded",
                "messages",
            )
        request = self._request(call, prepared, room)
        with self._waiting():
            generations = await self._sampled(request)
        texts = answer_texts(lambda answers: [self.parser.text(ids) for ids in answers], generations, request.sampling)
        answers: list[Answer] = []
        for number, (generation, text) in enumerate(zip(generations, texts, strict=True)):
            parsed = self.parser.parse(text, call.tools, self._call_prefix(prepared.request, number))
            self.transcript.counts["malformed_calls"] += parsed.is_malformed
            answers.append(self.transcript.commit(prepared, generation, parsed.message))
            self.counts.num_tokens += generation.num_tokens
        self.num_answers += 1
        if self.num_answers >= self.rules.config.max_steps:
            self.over.set()
        return Reply(tuple(answers), len(prepared.prompt_ids))

    def _check(self, call: ChatCall) -> None:
        own = self.rules.sampling
        ours = {"temperature": own.temperature, "top_p": own.top_p, "top_k": own.top_k}
        if any(value != ours.get(name) for name, value in call.overrides.items()):
            self.transcript.counts["overridden"] += 1
        if self.is_closed:
            raise Refusal(410, "The session is over.", "session_closed")
        if self.num_answers >= self.rules.config.max_steps:
            raise Refusal(400, f"The session had its {self.rules.config.max_steps} answers (max_steps).", "turn_limit")
        if call.tools and not self.parser.takes_tools:
            raise Refusal(400, "The chat template of this model shows no tools, or writes calls in a form that is not "
                          "read here: leave tools out, or use another template.", "unsupported", "tools")  # fmt: skip

    def _request(self, call: ChatCall, prepared: Prepared, room: int) -> GenerationRequest:
        rules, own = self.rules, self.rules.sampling
        longest = min(room, rules.max_answer_tokens or room, call.max_tokens or room)
        sampling = replace(
            own,
            max_new_tokens=longest,
            min_new_tokens=min(own.min_new_tokens, longest),
            stop_strings=(*own.stop_strings, *call.stop),
            include_stop_string=own.include_stop_string and not call.stop,
            seed=turn_seed(rules.seed, self.job, prepared.num_before + _MOST_TURNS * prepared.repeat, self.attempt),
        )
        name = f"{self.job.name}-{self.attempt}"
        self.num_requests += 1
        return GenerationRequest(
            f"{name}-{self.num_requests - 1}",
            prepared.prompt_ids,
            sampling,
            num_samples=call.n,
            session=name,
            order=self.job.order,
        )

    async def _sampled(self, request: GenerationRequest) -> list[Generation]:
        try:
            found = await self.generate(request)
        except StrategyError as error:
            raise Refusal(400, f"The engine does not take this request: {error}") from None
        except Exception as error:  # no engine is left: the run ends with it
            self.error = self.error or error
            self.over.set()
            raise Refusal(500, f"No engine can answer: {describe(error)}") from None
        answers = [answer for answer in found if isinstance(answer, Generation)]
        assert len(answers) == len(found), "the tokens of an answer are needed here"
        if any(answer.finish_reason == "abort" or not len(answer.token_ids) for answer in answers):
            raise Refusal(503, "The run cuts its answers short. Ask again.")
        return answers

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        self._num_paused += 1
        clock, loop = self.deadline, asyncio.get_running_loop()
        if self._num_paused == 1 and clock is not None and (due := clock.when()) is not None:
            self._left_s = due - loop.time()
            clock.reschedule(None)
        try:
            yield
        finally:
            self._num_paused -= 1
            if not self._num_paused and clock is not None and not clock.expired() and self._left_s > 0:
                clock.reschedule(loop.time() + self._left_s)

    def _call_prefix(self, request: int, number: int) -> str:
        """The first eight characters of call ids, the same whenever the episode is played: Mistral's template takes
        nine letters and digits."""
        seed = f"{self.rules.seed}/{self.job.name}/{self.attempt}/{request}/{number}"
        return base64.b32encode(hashlib.blake2b(seed.encode(), digest_size=5).digest()).decode().lower()

    def give_reward(self, value: object, metrics: object = None) -> None:
        """Takes what the program says it earned. Raises ValueError for what is no reward."""
        self.reward, self.metrics = checked_reward(value), checked_metrics(metrics)

    async def close(self) -> None:
        """Nothing is sampled any more; what is under way is cut."""
        self.is_closed = True
        open_work = [exchange.work for exchange in self._open]
        for work in open_work:
            work.cancel()
        await asyncio.gather(*open_work, return_exceptions=True)
        self._exchanges.clear()


def checked_reward(value: object) -> float:
    """Raises ValueError for what is no number, or one beyond LARGEST_REWARD."""
    if isinstance(value, bool | int | float | np.number):
        reward = float(value)
        if math.isfinite(reward) and abs(reward) <= LARGEST_REWARD:
            return reward
    raise ValueError(f"a reward is a number up to {LARGEST_REWARD:g}, not {value!r}")


def checked_metrics(metrics: object) -> dict[str, float]:
    """Numbers by name. Raises ValueError for others."""
    if metrics is None:
        return {}
    if not isinstance(metrics, Mapping):
        raise ValueError(f"metrics are numbers by name, not {metrics!r}")
    try:
        return {str(name): float(value) for name, value in metrics.items()}
    except (TypeError, ValueError):
        raise ValueError(f"metrics are numbers by name, not {dict(metrics)!r}") from None


def session_key(secret: bytes, session_id: str) -> str:
    """What opens the session and no other."""
    mac = hmac.digest(secret, session_id.encode(), "sha256")
    return f"roll-{session_id}-{base64.b32encode(mac).decode().rstrip('=').lower()}"
