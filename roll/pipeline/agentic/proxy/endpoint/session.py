"""A session: one attempt of a program, its limits, and the way from a request to sampled tokens."""

import asyncio
import base64
import hashlib
import hmac
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from roll.configs.tables.sight import VisionModel
from roll.datasets.pictures.decode import all_decoded
from roll.distributed.strategy.stop_strings import answer_texts
from roll.errors import PictureError, StrategyError, describe
from roll.pipeline.agentic.episode import Counts, EpisodeJob, EpisodeRules, turn_seed
from roll.pipeline.agentic.proxy.endpoint.errors import Refusal
from roll.pipeline.agentic.proxy.endpoint.reward import Outcome
from roll.pipeline.agentic.proxy.transcript.message import ChatCall, ChatMessage
from roll.pipeline.agentic.proxy.transcript.parse import Parser
from roll.pipeline.agentic.proxy.transcript.render import RenderRefused
from roll.pipeline.agentic.proxy.transcript.transcript import Added, Prepared, Transcript
from roll.pipeline.agentic.proxy.transcript.tree import Answer
from roll.pipeline.agentic.sample_forms import LONG
from roll.types.rollout import Generate, Generation, GenerationRequest
from roll.utils.background import start
from roll.utils.text import show

logger = logging.getLogger(__name__)

MOST_OPEN = 64  # requests of one session
MOST_SAMPLES = 128  # n
MOST_REFUSED = 20  # one after the other: the program does not listen
TURN_LIMIT = "turn_limit"
_MOST_TURNS = 1 << 20
_MOST_REPEATS = 1 << 40


@dataclass(frozen=True)
class Reply:
    """Reply to a request: answers with their texts parsed, and the number of tokens of the prompt."""

    answers: tuple[Answer, ...]
    num_prompt: int

    @property
    def num_sampled(self) -> int:
        return sum(answer.generation.num_tokens for answer in self.answers)

    def deliver(self) -> None:
        for answer in self.answers:
            answer.delivered = True


@dataclass(eq=False, repr=False)
class Exchange:
    """A request on its way, with its number, a digest of its body, and the tokens of its prompt."""

    work: asyncio.Task[Reply]
    request: int
    digest: bytes
    num_prompt: int

    @property
    def has_failed(self) -> bool:
        return self.work.done() and (self.work.cancelled() or self.work.exception() is not None)


@dataclass(eq=False, repr=False)
class Session:
    """`deadline` stands still while at least one request is with the engines. `is_outside`: its program is not one that
    the run has started, and ends it by giving a reward."""

    session_id: str
    key: str
    job: EpisodeJob
    attempt: int
    rules: EpisodeRules
    transcripts: Mapping[str, Transcript]
    """Transcripts by side, in order; that of the side "" where there is one. They share counts and breaks."""
    parser: Parser
    generate: Generate
    counts: Counts
    task: Mapping[str, Any]
    is_outside: bool = False
    noted: set[tuple[str, str]] = field(default_factory=set)
    """Names in requests that the log has called ignored, by tag: sessions of an endpoint share it."""
    last_request_s: float = 0.0
    """Time of the last request that was not refused, and of the last answer, by the loop's clock."""
    retry_window_s: float = 30.0
    deadline: asyncio.Timeout | None = None
    outcome: Outcome | None = None
    rewarded: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when there is a reward."""
    failure: str = ""
    error: BaseException | None = None
    is_closed: bool = False
    num_answers: int = 0
    num_requests: int = 0
    num_refused: int = 0
    responses: dict[str, tuple[ChatMessage, ...]] = field(default_factory=dict)
    """Conversations up to an answer, by the id that the protocol of responses gave it, without instructions."""
    over: asyncio.Event = field(default_factory=asyncio.Event)
    """The turn limit was met, or nothing more is to come."""
    _open: set[Exchange] = field(default_factory=set)
    _abandoned: dict[bytes, tuple[Exchange, asyncio.TimerHandle]] = field(default_factory=dict)
    """Requests whose client went away, by the digest of the body."""
    _left_s: float = 0.0
    _num_paused: int = 0

    @property
    def transcript(self) -> Transcript:
        """The first side's, or the only one."""
        return next(iter(self.transcripts.values()))

    @property
    def vision(self) -> VisionModel | None:
        return self.parser.encoder.vision

    @property
    def sides(self) -> tuple[str, ...]:
        """Names of the sides; none where there are no several."""
        return tuple(filter(None, self.transcripts))

    def side_of(self, model: str) -> str:
        """The side that a request's model names. Raises Refusal for one that is none."""
        if self.sides and model not in self.sides:
            raise Refusal(404, f"model: {model!r} is none of the sides {', '.join(self.sides)}.", "model_not_found",
                          "model")  # fmt: skip
        return model if self.sides else ""

    async def exchange(self, call: ChatCall, digest: bytes) -> Exchange:
        """The way of a request. One of the same body whose client went away goes on, for `retry_window_s`: programs
        send again what took longer than they wait. Any other is a new sample. Raises Refusal for what can be refused
        before an engine is asked."""
        if digest in self._abandoned:
            exchange, timer = self._abandoned.pop(digest)
            timer.cancel()
            if not exchange.has_failed:
                self.transcript.counts["retries"] += 1
                return exchange
        if len(self._open) >= MOST_OPEN:
            raise Refusal(429, f"The session has {MOST_OPEN} requests open.")
        added = None
        if call.num_characters > LONG:
            added = await asyncio.to_thread(self.transcripts[call.side].tokenised, call)
        prepared = self._prepared(call, added)
        exchange = Exchange(start(self.complete(call, prepared)), prepared.request, digest, len(prepared.prompt_ids))
        self._open.add(exchange)
        self.last_request_s = asyncio.get_running_loop().time()
        exchange.work.add_done_callback(lambda work: self._ended(exchange))
        return exchange

    def _ended(self, exchange: Exchange) -> None:
        self._open.discard(exchange)
        if exchange.has_failed:  # whoever waits gets the error; if nobody does, it is nobody's
            if not exchange.work.cancelled() and isinstance(error := exchange.work.exception(), Refusal):
                self.count_refusal(error)
            return
        self.num_refused = 0
        self.num_answers += 1
        self.last_request_s = asyncio.get_running_loop().time()
        if self.num_answers >= self.rules.config.max_steps:
            self.over.set()

    def leave(self, exchange: Exchange) -> None:
        """The client went away: the request goes on for `retry_window_s`, in case that it asks again."""
        if exchange.has_failed or self.is_closed:
            return

        def give_up() -> None:
            self._abandoned.pop(exchange.digest, None)
            exchange.work.cancel()

        timer = asyncio.get_running_loop().call_later(self.retry_window_s, give_up)
        self._abandoned[exchange.digest] = exchange, timer

    def count_refusal(self, refusal: Refusal) -> None:
        """A program that sends nothing but what is refused is ended. What may pass (429, 5xx) does not count, and what
        comes after the turn limit ends the program by that limit."""
        if refusal.status not in (400, 413):
            return
        self.transcript.counts["refused"] += 1
        self.num_refused += refusal.code != TURN_LIMIT
        if self.num_refused >= MOST_REFUSED:
            self.failure = f"{MOST_REFUSED} requests in a row were refused"
            self.over.set()

    def _prepared(self, call: ChatCall, added: Added | None = None) -> Prepared:
        self._check(call)
        try:
            prepared = self.transcripts[call.side].prepare(call, added)
        except RenderRefused as refusal:
            raise Refusal(400, str(refusal)) from None
        if len(prepared.prompt_ids) >= self.rules.max_length:
            text = f"prompt is too long: {len(prepared.prompt_ids)} tokens > {self.rules.max_length - 1} maximum"
            raise Refusal(400, text, "context_length_exceeded", "messages")
        return prepared

    async def complete(self, call: ChatCall, prepared: Prepared | None = None) -> Reply:
        """Samples the answers to a request and adds them to the transcript. Raises Refusal."""
        prepared = prepared or self._prepared(call)
        request = self._request(call, prepared)
        began = time.monotonic()
        with self._waiting():
            if request.media:
                request = await asyncio.to_thread(_decoded, request)
            generations = await self._sampled(request)
        time_s = time.monotonic() - began
        texts = answer_texts(lambda answers: [self.parser.text(ids) for ids in answers], generations, request.sampling)
        answers: list[Answer] = []
        for number, (generation, text) in enumerate(zip(generations, texts, strict=True)):
            # of call ids the first eight characters, the same in every play: Mistral's template takes nine of [a-z2-7]
            place = f"{self.rules.seed}/{self.job.name}/{self.attempt}/{prepared.request}/{number}"
            prefix = base64.b32encode(hashlib.blake2b(place.encode(), digest_size=5).digest()).decode().lower()
            parsed = self.parser.parse(text, call.tools, prefix)
            self.transcript.counts["malformed_calls"] += parsed.is_malformed
            answer = self.transcripts[call.side].commit(prepared, generation, parsed.message)
            answer.is_malformed = parsed.is_malformed
            answer.time_s = time_s
            said = self.parser.text(generation.token_ids) if call.stop else text
            if said != text:  # cut before the string that ended it
                answer.stopped_by = next((stop for stop in call.stop if said.startswith(stop, len(text))), "")
            answers.append(answer)
            self.counts.num_tokens += generation.num_tokens
        return Reply(tuple(answers), len(prepared.prompt_ids))

    def _check(self, call: ChatCall) -> None:
        self._note_ignored(call.ignored)
        if self.is_closed:
            raise Refusal(410, "The session is over.", "session_closed")
        most = self.rules.config.max_steps
        if self.num_answers + len(self._open) >= most:
            raise Refusal(
                400, f"The session has used its {most} responses (max_steps), including those in flight.", TURN_LIMIT
            )
        if call.tools and not self.parser.takes_tools:
            raise Refusal(400, "The chat template of this model does not show tools, or writes calls in an unsupported "
                               "form: leave tools out, or use another template.", "unsupported", "tools")  # fmt: skip

    def _note_ignored(self, names: Sequence[str]) -> None:
        new = [name for name in names if (self.job.tag, name) not in self.noted]
        self.noted.update((self.job.tag, name) for name in new)
        if new:
            program = self.rules.config.agent or show(self.rules.config.agent_command, 60)
            text = "%s: requests of the program (%s) say what does nothing here, or is decided by the run: %s"
            logger.warning(text, self.job.tag, program, ", ".join(new))

    def _request(self, call: ChatCall, prepared: Prepared) -> GenerationRequest:
        rules, rule_sampling = self.rules, self.rules.sampling
        room = rules.max_length - len(prepared.prompt_ids)
        longest = min(room, rules.max_answer_tokens or room, call.max_tokens or room)
        sampling = replace(
            rule_sampling,
            max_new_tokens=longest,
            min_new_tokens=min(rule_sampling.min_new_tokens, longest),
            stop_strings=(*rule_sampling.stop_strings, *call.stop),
            include_stop_string=rule_sampling.include_stop_string and not call.stop,
            seed=turn_seed(rules.seed, self.job, self._turn(call, prepared), self.attempt),
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
            media=prepared.media,
        )

    def _turn(self, call: ChatCall, prepared: Prepared) -> int:
        """A number of its own for every answer that is drawn anew: sides draw apart from each other."""
        side = list(self.transcripts).index(call.side)
        return prepared.num_before + _MOST_TURNS * prepared.repeat + _MOST_REPEATS * side

    async def _sampled(self, request: GenerationRequest) -> list[Generation]:
        try:
            answers = list(await self.generate(request))
        except StrategyError as error:
            raise Refusal(400, f"The engine refuses this request: {error}") from None
        except Exception as error:  # no engine is left: the run ends with it
            self.error = self.error or error
            self.over.set()
            raise Refusal(500, f"No engine can answer: {describe(error)}") from None
        if any(answer.finish_reason == "abort" or not len(answer.token_ids) for answer in answers):
            raise Refusal(503, "The run is interrupting its responses. Try again.")
        return answers

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        self._num_paused += 1
        clock, loop = self.deadline, asyncio.get_running_loop()
        if self._num_paused == 1 and clock is not None and (due := clock.when()) is not None:
            self._left_s = due - loop.time()
            if self._left_s > 0:  # else it has passed, and ends the episode
                clock.reschedule(None)
        try:
            yield
        finally:
            self._num_paused -= 1
            if not self._num_paused and clock is not None and not clock.expired() and self._left_s > 0:
                clock.reschedule(loop.time() + self._left_s)

    @property
    def is_waiting(self) -> bool:
        """Whether a request is with the engines."""
        return bool(self._open)

    def give(self, earned: Outcome) -> None:
        self.outcome = earned
        self.rewarded.set()

    async def close(self) -> None:
        """Closes the session. Requests in flight are cancelled, and nothing more is sampled."""
        self.is_closed = True
        open_work = [exchange.work for exchange in self._open]
        for work in open_work:
            work.cancel()
        await asyncio.gather(*open_work, return_exceptions=True)
        for _, timer in self._abandoned.values():  # else the loop would hold the session for as long as they run
            timer.cancel()
        self._abandoned.clear()


def _decoded(request: GenerationRequest) -> GenerationRequest:
    try:
        (media,) = all_decoded([request.media])
    except PictureError as error:
        raise Refusal(400, f"messages: {error}", param="messages") from None
    return replace(request, media=media)


def session_of(key: str) -> str:
    """The session that a key says it opens."""
    return key.removeprefix("roll-").rpartition("-")[0]


def session_key(secret: bytes, session_id: str, purpose: str = "") -> str:
    """Return the key that opens this session and no other, for this purpose alone."""
    mac = hmac.digest(secret, f"{session_id}{purpose}".encode(), "sha256")
    return f"roll-{session_id}-{base64.b32encode(mac).decode().rstrip('=').lower()}"
