"""What tests of the endpoint share: an engine that says what it is told to, with log-probs that depend on every token
before, and templates that show tools."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Awaitable, Callable, Coroutine
from copy import deepcopy
from typing import Any, TypeVar

import numpy as np
import pytest

from roll.envs.config import EnvConfig
from roll.models.tiny import build_tokenizer
from roll.pipeline.agentic.episode import Counts, EpisodeJob, EpisodeRules
from roll.pipeline.agentic.proxy.endpoint.server import Endpoint
from roll.pipeline.agentic.proxy.endpoint.session import Session
from roll.pipeline.agentic.sample_forms import ChatEncoder
from roll.types.rollout import Generation, GenerationRequest, SamplingParams, Trajectory
from tests.unit.pipeline.agentic.parts import rules

T = TypeVar("T")
_CALLS = (
    "{% for call in m.tool_calls %}{% if m.content or not loop.first %}{{ '\n' }}{% endif %}"
    '{{ \'<tool_call>\n{"name": "\' + call.function.name + \'", "arguments": \' + (call.function.arguments | tojson)'
    " + '}\n</tool_call>' }}{% endfor %}"
)
_TURNS = (
    "{% if tools %}{{ '<|im_start|>system\n' }}{% for t in tools %}{{ t | tojson + '\n' }}{% endfor %}"
    "{{ '<|im_end|>\n' }}{% endif %}"
    "{% for m in messages %}{% if m.role == 'tool' %}"
    "{{ '<|im_start|>user\n<tool_response>\n' + m.content + '\n</tool_response><|im_end|>\n' }}"
    "{% else %}{{ '<|im_start|>' + m.role + '\n' }}THINKING{{ m.content }}{% if m.tool_calls %}CALLS{% endif %}"
    "{{ '<|im_end|>\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
_THOUGHT = "{% if m.reasoning_content COND %}{{ '<think>' + m.reasoning_content + '</think>' }}{% endif %}"
KEEPS = _TURNS.replace("CALLS", _CALLS).replace("THINKING", _THOUGHT.replace("COND", ""))
DROPS = _TURNS.replace("CALLS", _CALLS).replace("THINKING", _THOUGHT.replace("COND", "and loop.last"))
"""As Qwen3's: thinking of an answer is written while nothing follows it."""
OPEN = {
    "type": "function",
    "function": {
        "name": "open",
        "description": "Opens a box.",
        "parameters": {"type": "object", "properties": {"box": {"type": "string"}}, "required": ["box"]},
    },
}
CALL = '<tool_call>\n{"name": "open", "arguments": {"box": "F"}}\n</tool_call>'


def tool_encoder(template: str = KEEPS) -> ChatEncoder:
    tokenizer = build_tokenizer()
    tokenizer.chat_template = template
    return ChatEncoder(tokenizer)


def log_prob(before: np.ndarray, token: int) -> float:
    """What the engine below gives a token behind others: another number behind any other tokens."""
    told = before.astype(np.int32).tobytes() + int(token).to_bytes(4, "little")
    return -np.float32(zlib.crc32(told) / (1 << 32)).item()


class Engine:
    """Says what `speak` makes of the number of the answer; `<|im_end|>` behind it unless it is cut. The version of its
    tokens is the number. `sent` holds each prompt with its answer."""

    def __init__(self, encoder: ChatEncoder, speak: Callable[[int], str]):
        self.encoder, self.speak = encoder, speak
        self.requests: list[GenerationRequest] = []
        self.sent: list[np.ndarray] = []
        self.gate: asyncio.Event | None = None
        self.error: Exception | None = None
        self.finish: str | None = None

    async def __call__(self, request: GenerationRequest) -> list[Generation]:
        self.requests.append(request)
        if self.gate is not None:
            await self.gate.wait()
        if self.error is not None:
            raise self.error
        return [self._answer(request) for _ in range(request.num_samples)]

    def _answer(self, request: GenerationRequest) -> Generation:
        number = len(self.sent)
        text = self.speak(number) + "<|im_end|>"
        for stop in request.sampling.stop_strings:
            text = text[: text.find(stop) + len(stop)] if stop in text else text
        said = self.encoder.encode(text)[: request.sampling.max_new_tokens]
        whole = np.concatenate([request.prompt_ids, said])
        self.sent.append(whole)
        start = len(request.prompt_ids)
        values = [log_prob(whole[:place], whole[place]) for place in range(start, len(whole))]
        ended = self.encoder.show(said) == text
        finish: Any = self.finish or ("stop" if ended else "length")
        return Generation(said, np.array(values, np.float32), np.full(len(said), number, np.int32), finish)


def proxy_rules(**changes: Any) -> EpisodeRules:
    config = EnvConfig.model_validate(
        {"env_type": "program", "env_manager_cls": "proxy", "agent": "x:y", "max_steps": 1000} | changes
    )
    found = rules(config, max_length=4000, sampling=SamplingParams(400))
    return EpisodeRules(**{**vars(found), "max_answer_tokens": 400})


JOB = EpisodeJob("Tools", 5, "train", 2, 1)


def open_session(endpoint: Endpoint, job: EpisodeJob = JOB, **changes: Any) -> Session:
    return endpoint.open(job, 0, proxy_rules(**changes), Counts(), {"seed": job.env_seed})


def check_rows(rows: list[Trajectory], engine: Engine, num_trained: int) -> None:
    """Every trained token was sampled behind exactly what stands before it in its row, and is trained once."""
    counts: dict[int, int] = {}
    for row in rows:
        sampled = np.flatnonzero(row.response_mask)
        assert len(sampled)
        for place in sampled.tolist():
            assert row.log_probs[place] == np.float32(log_prob(row.input_ids[:place], int(row.input_ids[place])))
        assert (row.policy_versions[~row.response_mask] == -1).all() and (row.log_probs[~row.response_mask] == 0).all()
        for version in row.policy_versions[row.response_mask].tolist():
            counts[version] = counts.get(version, 0) + 1
    assert sum(counts.values()) == num_trained
    for version, count in counts.items():
        assert count <= len(engine.sent[version])


def copied(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return deepcopy(messages)


ENCODER = tool_encoder()
ASK: list[Any] = [{"role": "user", "content": "box F?"}]


class Place:
    """An endpoint with one session, and clients of it."""

    def __init__(self, endpoint: Endpoint, session: Session, engine: Engine):
        self.endpoint, self.session, self.engine = endpoint, session, engine
        self.variables = endpoint.environment(session)
        self.open: list[Any] = []

    def openai(self, **keys: Any) -> Any:
        base, key = self.variables["OPENAI_BASE_URL"], self.variables["OPENAI_API_KEY"]
        self.open.append(
            pytest.importorskip("openai").AsyncOpenAI(**{"base_url": base, "api_key": key, "max_retries": 0} | keys)
        )
        return self.open[-1]

    def anthropic(self, **keys: Any) -> Any:
        base, key = self.variables["ANTHROPIC_BASE_URL"], self.variables["ANTHROPIC_API_KEY"]
        self.open.append(
            pytest.importorskip("anthropic").AsyncAnthropic(
                **{"base_url": base, "api_key": key, "max_retries": 0} | keys
            )
        )
        return self.open[-1]

    def rows(self) -> list[Any]:
        return [row for row, _ in self.session.transcript.rows()]


def serve(
    said: list[str], play: Callable[[Place], Coroutine[Any, Any, T]], encoder: ChatEncoder = ENCODER, **changes: Any,
) -> T:  # fmt: skip
    """What `play` returns with an endpoint that says these texts in turn."""

    async def run() -> T:
        engine = Engine(encoder, lambda number: said[number % len(said)])
        endpoint = Endpoint(encoder, engine)
        await endpoint.start()
        place = Place(endpoint, open_session(endpoint, **changes), engine)
        try:
            return await asyncio.wait_for(play(place), 60)
        finally:
            for client in place.open:
                await client.close()
            await endpoint.stop()

    return asyncio.run(run())


async def until(holds: Callable[[], bool], pause: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
    while not holds():
        await pause(0.005)
