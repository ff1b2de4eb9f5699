"""Random programs against a real engine: the log-prob of every trained token is that of a whole forward pass over what
stands before it in its row, every received token is trained once, and breaks lie where a plain comparison finds them.

The model is a tiny one that has learnt a handful of answers by heart, so that it calls tools and thinks; weights change
amid sessions. An answer that a program received is what the endpoint put on the wire for it."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from roll.models.tiny import build_model, build_tokenizer, save_pretrained
from roll.pipeline.agentic.episode import Counts, EpisodeRules
from roll.pipeline.agentic.proxy.endpoint.chat import ChatBody, ChatWire, read_chat
from roll.pipeline.agentic.proxy.endpoint.errors import Refusal
from roll.pipeline.agentic.proxy.endpoint.server import Endpoint
from roll.pipeline.agentic.proxy.endpoint.session import Reply, Session
from roll.pipeline.agentic.proxy.transcript.message import ChatCall
from roll.pipeline.agentic.proxy.transcript.rows import transcript_rows
from roll.pipeline.agentic.proxy.transcript.transcript import Prepared
from roll.types.rollout import Generation, GenerationRequest, SamplingParams, Trajectory
from tests.helpers.engines import EngineHarness, forward_log_probs, load_model
from tests.unit.pipeline.agentic.proxy.parts import CALL, DROPS, JOB, KEEPS, OPEN, proxy_rules, tool_encoder

ENCODERS = {"keeps": tool_encoder(KEEPS), "drops": tool_encoder(DROPS)}
SAID = ("yes", "no  no", "<think>hm</think>go on", "<think>a b</think>" + CALL, CALL, "open it\n" + CALL, "7 \u00e9")
LONGEST, MOST_SAMPLED = 700, 100
STEPS, TAUGHT = 150, 700  # then nine of ten answers are of these
TOLERANCE = 1e-5  # fp32 with a cache against one forward pass: a thousandth of tokens, unlikely ones, are above it
Messages = list[dict[str, Any]]


@pytest.fixture(scope="module")
def talker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Talker]:
    """An engine of a model that says what stands in SAID, mostly."""
    import torch

    tokenizer = build_tokenizer()
    model = build_model(tokenizer, tie_word_embeddings=False)
    rng = random.Random(0)
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3, weight_decay=1.0)
    for _ in range(STEPS):
        texts = [ENCODERS["keeps"].render(conversation(rng), [OPEN], False) for _ in range(2)]
        ids = torch.stack([torch.tensor(tokenizer(text).input_ids[:TAUGHT]) for text in texts])
        logits = model(input_ids=ids).logits[:, :-1]
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), label_smoothing=0.02)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    folder = save_pretrained(tmp_path_factory.mktemp("talker"), model, tokenizer)
    harness = EngineHarness("hf_infer", folder, max_model_len=2048)
    yield Talker(harness, tmp_path_factory.mktemp("buckets"))
    harness.close()


def conversation(rng: random.Random) -> Messages:
    messages: Messages = [{"role": "system", "content": "be brief"}]
    for _ in range(40):
        question = rng.choice(("box F?", "go on", "and now?", "<tool_response>\n2\n</tool_response>"))
        messages += [{"role": "user", "content": question}, {"role": "assistant", "content": rng.choice(SAID)}]
    return messages


class Talker:
    """`models`: the one of each version."""

    def __init__(self, harness: EngineHarness, folder: Path):
        self.harness, self.models, self._folder = harness, [harness.model], folder

    async def learn(self) -> None:
        """Gives the engine slightly other weights, as the trainer does between steps."""
        import torch

        model = load_model(self.harness.model_dir)
        generator = torch.Generator().manual_seed(len(self.models))
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += 0.004 * torch.randn(parameter.shape, generator=generator)
        await self.harness.update(model, "file", self._folder)
        self.models.append(model)


class Engine:
    """Keeps what was sent, with what was sampled behind it."""

    def __init__(self, harness: EngineHarness):
        self.harness = harness
        self.sent: list[np.ndarray] = []
        self.answers: list[Generation] = []

    async def __call__(self, request: GenerationRequest) -> list[Generation]:
        answers = list(await self.harness.engine.generate(request))
        self.answers += answers
        self.sent += [np.concatenate([request.prompt_ids, answer.token_ids]) for answer in answers]
        return answers

    def whole(self, answer: Generation) -> np.ndarray:
        return next(sent for sent, one in zip(self.sent, self.answers, strict=True) if one is answer)


class Program:
    """Keeps every conversation that it had, and does random things to them.

    - `trained`: every sampled token that reached it and that no structure led, as the bytes of itself and all before it
    - `known`: what was sent and sampled up to the end of each answer that reached it, by the conversation
    - `asked`: conversations that were answered; `shown`: those up to an answer, sampled or not, that were sent"""

    def __init__(self, session: Session, engine: Engine, seed: int, is_exact: bool):
        self.session, self.engine, self.is_exact = session, engine, is_exact
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

    def prepare(self, call: ChatCall) -> Prepared:
        """A break lies at the first token that differs from everything that was sent and sampled before."""
        transcript = self.session.transcript
        before, known = list(self.engine.sent), len(transcript.breaks)
        prepared = self._prepare(call)
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
            longest = max(shared(prompt, whole) for whole in self.engine.sent)
            goes_on = any(shared(prompt, whole) == longest in (len(whole), len(prompt)) for whole in self.engine.sent)
            assert is_broken or goes_on or history in self.shown  # or appends to a cut answer, or repeats a prompt
        self.shown.update(told(call.messages[: place + 1]) for place in places)

    async def ask(self, messages: Messages, how: str = "go", **keys: Any) -> None:
        body = ChatBody.model_validate({"messages": deepcopy(messages), "tools": [OPEN], **keys})
        call, digest = read_chat(body), json.dumps([messages, keys], sort_keys=True).encode()
        try:
            exchange = self.session.exchange(call, digest, is_retry=how == "retry")
        except Refusal as refusal:
            assert refusal.code == "context_length_exceeded"
            self.num_refused += 1
            self.conversations = self.conversations[:1]
            return
        if how == "leaves":
            self.session.leave(exchange)
            again = self.session.exchange(call, digest, is_retry=False)
            assert again is exchange
        reply = await exchange.work
        if how != "lost":
            self.receive(body, call, reply)

    def receive(self, body: ChatBody, call: ChatCall, reply: Reply) -> None:
        reply.deliver()
        wire = json.loads(json.dumps(ChatWire(body, self.session.parser, "x").reply(reply)))
        for answer, choice in zip(reply.answers, wire["choices"], strict=True):
            self.conversations.append([*deepcopy(body.messages), choice["message"]])
            whole = self.engine.whole(answer.generation)
            self.known.setdefault(told([*call.messages, answer.message]), []).append(whole)
            self.served.add(told([answer.message]))
            self.asked.add(told(call.messages))
            if id(answer) not in self._received and not answer.is_guided:
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
        if what == "retry":
            await self.ask(messages, "retry")

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
    "guided": {"response_format": {"type": "json_object"}, "max_tokens": 30},
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
    "retry",
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


def check_rows(rows: list[Trajectory], program: Program, models: list[Any]) -> None:
    counts: Counter[bytes] = Counter()
    wrong: list[np.ndarray] = []
    for row in rows:
        sampled = np.flatnonzero(row.response_mask)
        assert len(sampled) and (row.log_probs[~row.response_mask] == 0).all()
        assert (row.policy_versions[~row.response_mask] == -1).all()
        counts.update(row.input_ids[: place + 1].tobytes() for place in sampled.tolist())
        for version in set(row.policy_versions[sampled].tolist()):
            places = sampled[row.policy_versions[sampled] == version]
            whole = forward_log_probs(models[version], row.input_ids[:1], row.input_ids[1:])
            wrong.append(np.abs(row.log_probs[places] - whole[places - 1]))
    if wrong:
        differences = np.concatenate(wrong)
        assert differences.mean() < TOLERANCE / 10 and differences.max() < 5 * TOLERANCE
    assert counts == program.trained


def play(talker: Talker, template: str, seed: int, num_actions: int) -> Program:
    """Plays a program, and checks everything that it left."""
    rng = random.Random(seed)
    narrow = {"sampling": SamplingParams(MOST_SAMPLED), "max_answer_tokens": MOST_SAMPLED, "max_length": LONGEST}
    rules = EpisodeRules(**{**vars(proxy_rules()), **narrow, "seed": seed})
    engine = Engine(talker.harness)
    session = Endpoint(ENCODERS[template], engine).open(JOB, 0, rules, Counts(), {})
    program = Program(session, engine, seed, template == "keeps")

    async def run() -> None:
        for _ in range(num_actions):
            await program.act(rng.choice(ACTIONS))
            if rng.random() < 0.1:
                await talker.learn()

    talker.harness.run(run(), timeout_s=200)
    check_rows([row for row, _ in transcript_rows(session.transcript.root)], program, talker.models)
    return program


@pytest.mark.parametrize("template", ENCODERS)
def test_what_a_program_leaves_is_what_the_engine_sampled(talker: Talker, template: str) -> None:
    programs = [play(talker, template, seed, 16) for seed in range(3)]
    assert sum(program.num_breaks for program in programs) > 3
    calls = [call for program in programs for call in program.served if "open" in call]
    assert calls, "the model has forgotten how to call"


@pytest.mark.slow
@pytest.mark.parametrize("template", ENCODERS)
def test_what_many_programs_leave_is_what_the_engine_sampled(talker: Talker, template: str) -> None:
    programs = [play(talker, template, seed, 30) for seed in range(100, 125)]
    assert sum(program.num_breaks for program in programs) > 80
    assert sum(program.num_refused for program in programs) > 3
