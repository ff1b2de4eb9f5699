"""A program that does random things to its conversations, and a record of what reached the engine: what is trained must
be what this program received, and breaks lie where a plain comparison finds them."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from copy import deepcopy
from typing import Any

import numpy as np

from roll.pipeline.agentic.proxy.endpoint.chat import ChatBody, ChatWire, read_chat
from roll.pipeline.agentic.proxy.endpoint.errors import Refusal
from roll.pipeline.agentic.proxy.endpoint.session import Reply, Session
from roll.pipeline.agentic.proxy.transcript.message import ChatCall
from roll.pipeline.agentic.proxy.transcript.transcript import Added, Prepared, transcript_rows
from roll.types.rollout import Generate, Generation, GenerationRequest, Trajectory
from tests.unit.pipeline.agentic.proxy.parts import CALL, DROPS, KEEPS, OPEN, tool_encoder

ENCODERS = {"keeps": tool_encoder(KEEPS), "drops": tool_encoder(DROPS)}
SAID = ("yes", "no  no", "<think>hm</think>go on", "<think>a b</think>" + CALL, CALL, "open it\n" + CALL, "7 \u00e9")
Messages = list[dict[str, Any]]


class Record:
    """Asks an engine, and keeps what was sent, with what was sampled behind it."""

    def __init__(self, generate: Generate):
        self._generate = generate
        self.sent: list[np.ndarray] = []
        self.answers: list[Generation] = []

    async def __call__(self, request: GenerationRequest) -> list[Generation]:
        answers = list(await self._generate(request))
        self.answers += answers
        self.sent += [np.concatenate([request.prompt_ids, answer.token_ids]) for answer in answers]
        return answers

    def whole(self, answer: Generation) -> np.ndarray:
        return next(sent for sent, one in zip(self.sent, self.answers, strict=True) if one is answer)


class Program:
    """Keeps every conversation that it had, and does random things to them. An answer that it received is what the
    endpoint put on the wire for it.

    - `trained`: every sampled token that reached it, as the bytes of itself and all before it
    - `known`: what was sent and sampled up to the end of each answer that reached it, by the conversation
    - `asked`: conversations that were answered; `shown`: those up to an answer, sampled or not, that were sent"""

    def __init__(self, session: Session, record: Record, seed: int, is_exact: bool):
        self.session, self.record, self.is_exact = session, record, is_exact
        self.rng = random.Random(seed)
        self.conversations: list[Messages] = [[{"role": "system", "content": "be brief"}]]
        self.trained: Counter[bytes] = Counter()
        self.known: dict[str, list[np.ndarray]] = {}
        self.served: set[str] = set()
        self.asked: set[str] = set()
        self.shown: set[str] = set()
        self.num_breaks = self.num_refused = 0
        self._received: set[int] = set()
        self._prepare = session.transcript.prepare
        session.transcript.prepare = self.prepare  # type: ignore[method-assign]

    def prepare(self, call: ChatCall, added: Added | None = None) -> Prepared:
        """A break lies at the first token that differs from everything that was sent and sampled before."""
        transcript = self.session.transcript
        before, known = list(self.record.sent), len(transcript.breaks)
        prepared = self._prepare(call, added)
        broken = transcript.breaks[known:]
        for one in broken:
            assert one.at_token == max(shared(prepared.prompt_ids, other) for other in before)
            assert one.was != one.now or one.at_token == len(prepared.prompt_ids)
        self.num_breaks += len(broken)
        self.check(call, prepared.prompt_ids, bool(broken))
        return prepared

    def check(self, call: ChatCall, prompt: np.ndarray, is_broken: bool) -> None:
        """A request continues the very tokens of its last answer, or is a break."""
        places = [i for i, message in enumerate(call.messages) if message.role == "assistant"]
        if not places or not self.is_exact:  # a template that drops thinking breaks by itself
            return
        history = told(call.messages[: places[-1] + 1])
        wholes = self.known.get(history, ())
        if wholes:
            assert not is_broken and any(shared(prompt, whole) == len(whole) for whole in wholes)
        elif any(told(call.messages[:place]) in self.asked for place in places):
            longest = max(shared(prompt, whole) for whole in self.record.sent)
            goes_on = any(shared(prompt, whole) == longest in (len(whole), len(prompt)) for whole in self.record.sent)
            assert is_broken or goes_on or history in self.shown  # or appends to a cut answer, or repeats a prompt
        self.shown.update(told(call.messages[: place + 1]) for place in places)

    async def ask(self, messages: Messages, how: str = "go", **keys: Any) -> None:
        body = ChatBody.model_validate({"messages": deepcopy(messages), "tools": [OPEN], **keys})
        call, digest = read_chat(body), json.dumps([messages, keys], sort_keys=True).encode()
        try:
            exchange = await self.session.exchange(call, digest)
        except Refusal as refusal:
            assert refusal.code == "context_length_exceeded"
            self.num_refused += 1
            self.conversations = self.conversations[:1]
            return
        if how == "leaves":
            self.session.leave(exchange)
            again = await self.session.exchange(call, digest)
            assert again is exchange
        reply = await exchange.work
        if how != "lost":
            self.receive(body, call, reply)

    def receive(self, body: ChatBody, call: ChatCall, reply: Reply) -> None:
        reply.deliver()
        wire = json.loads(json.dumps(ChatWire(body, self.session.parser, "x").reply(reply)))
        for answer, choice in zip(reply.answers, wire["choices"], strict=True):
            self.conversations.append([*deepcopy(body.messages), choice["message"]])
            whole = self.record.whole(answer.generation)
            self.known.setdefault(told([*call.messages, answer.message]), []).append(whole)
            self.served.add(told([answer.message]))
            self.asked.add(told(call.messages))
            if id(answer) not in self._received:
                self.trained.update(whole[: place + 1].tobytes() for place in range(reply.num_prompt, len(whole)))
            self._received.add(id(answer))

    async def act(self, what: str) -> None:
        messages = deepcopy(self.rng.choice(self.conversations[-4 if what == "branch" else -1 :]))
        self.answer(messages)
        places = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
        if what in DAMAGES and places:
            self.damage(what, messages, self.rng.choice(places))
        if what == "fresh":
            messages = [{"role": "user", "content": f"a title for {self.rng.randrange(4)}"}]
        keys = KEYS.get(what, {})
        if what == "parallel":
            other = [*deepcopy(messages), {"role": "user", "content": "and at once"}]
            await asyncio.gather(*(self.ask(each) for each in (messages, other, messages)))
        else:
            await self.ask(messages, what, **keys)
        if what == "repeat" and self.rng.random() < 0.5:
            await self.ask(messages)

    def answer(self, messages: Messages) -> None:
        """What a user or a tool says next."""
        calls = messages[-1].get("tool_calls") or ()
        for call in calls:
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": str(self.rng.randrange(3))})
        if not calls:
            messages.append({"role": "user", "content": self.rng.choice(["box F?", "go on", "and now?"])})

    def damage(self, what: str, messages: Messages, place: int) -> None:
        message = messages[place]
        if what == "drop":
            del messages[place : place + 1 + self.rng.randrange(2)]
            if messages[-1]["role"] == "assistant" or len(messages) < 2:
                messages.append({"role": "user", "content": "more"})
        elif what == "edit":
            message["content"] = (message["content"] or "") + "!"
        elif what == "replace":
            message["content"] = "so be it"
        elif what == "think":
            message.pop("reasoning_content", None)
        elif what == "space":
            message["content"] = (message["content"] or "") + " "
        elif what == "order":
            messages[1:-1] = messages[1:-1][::-1]
        else:
            for call in message.get("tool_calls", ()):
                call["id"] = "another"
                call["function"]["arguments"] = json.dumps(json.loads(call["function"]["arguments"]), indent=3)
            message |= {"name": None, "refusal": None, "annotations": []}


DAMAGES = ("drop", "edit", "replace", "think", "space", "order", "reserialize")
KEYS: dict[str, dict[str, Any]] = {
    "two": {"n": 2},
    "cut": {"max_tokens": 3},
    "stop": {"stop": ["o", "</tool_call>"]},
}
ACTIONS = (
    "go",
    "go",
    "go",
    "branch",
    "branch",
    "fresh",
    "lost",
    "leaves",
    "repeat",
    "parallel",
    *KEYS,
    *DAMAGES,
)


def told(messages: Any) -> str:
    """The messages as a reader compares them: call ids, spacing and order of arguments do not count."""
    return repr([
        (m.role, m.content, m.reasoning, [(c.name, sorted(json.loads(c.arguments).items())) for c in m.calls])
        for m in messages
    ])  # fmt: skip


def shared(a: np.ndarray, b: np.ndarray) -> int:
    length = min(len(a), len(b))
    different = np.flatnonzero(a[:length] != b[:length])
    return int(different[0]) if len(different) else length


def trained_rows(program: Program) -> list[Trajectory]:
    """The rows that the program's session leaves; every token that it received is trained in them once, behind what
    the engine saw."""
    rows = [row for row, _ in transcript_rows(program.session.transcript.root)]
    counts: Counter[bytes] = Counter()
    for row in rows:
        sampled = np.flatnonzero(row.response_mask)
        assert len(sampled) and (row.log_probs[~row.response_mask] == 0).all()
        assert (row.policy_versions[~row.response_mask] == -1).all()
        counts.update(row.input_ids[: place + 1].tobytes() for place in sampled.tolist())
    assert counts == program.trained
    return rows
