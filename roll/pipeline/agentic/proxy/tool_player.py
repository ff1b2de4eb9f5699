"""Plays the episodes of an entry with env_manager_cls: tools: the policy calls tools until it answers in words."""

import asyncio
import inspect
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from roll.envs.tools.base import ToolError
from roll.envs.tools.class_tools import ClassTools
from roll.envs.tools.servers import ToolServers
from roll.envs.tools.toolset import Schema, ToolBox, ToolSet, as_text, cut_in_middle
from roll.errors import EnvError
from roll.pipeline.agentic.env_calls import EnvThread
from roll.pipeline.agentic.episode import Counts, EpisodeJob, EpisodeRules
from roll.pipeline.agentic.proxy.endpoint.chat import read_messages
from roll.pipeline.agentic.proxy.endpoint.errors import Refusal
from roll.pipeline.agentic.proxy.endpoint.session import Session
from roll.pipeline.agentic.proxy.metrics import SEQUENCE_CUT, SERVER_DEATHS, TOOL_CALLS, TOOL_ERRORS
from roll.pipeline.agentic.proxy.session_player import SessionPlayer
from roll.pipeline.agentic.proxy.transcript.message import ASSISTANT, SYSTEM, TOOL, USER, Call, ChatCall, ChatMessage
from roll.pipeline.agentic.proxy.transcript.parse import Parser
from roll.pipeline.agentic.proxy.transcript.render import Renderer, RenderRefused
from roll.pipeline.agentic.proxy.transcript.transcript import Transcript
from roll.pipeline.agentic.sample_forms import ChatEncoder
from roll.types.rollout import Generate, Trajectory
from roll.utils.background import start
from roll.utils.imports import resolve
from roll.utils.truths import accepted_answers, entry_at, options_in

UNREADABLE = "Error: the tool call cannot be read. Write it in the form of this conversation, its arguments as JSON."
CUT = "Error: the answer was cut before its tool call ended. Write a shorter one."


class UserThread:
    """The user's code of one episode: its class and its reward, in a thread of its own, which begins with the first
    call. Coroutines share one event loop there."""

    def __init__(self, name: str, turnstile: asyncio.Semaphore | None, timeout_s: float | None):
        self._name, self._turnstile, self._timeout_s = name, turnstile, timeout_s
        self._thread: EnvThread | None = None
        self._runner: asyncio.Runner | None = None

    async def call(self, what: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """Raises EnvCrash, EnvHang, and ToolError of a tool."""
        self._thread = self._thread or EnvThread(self._name, self._turnstile)
        return await self._thread.call(what, function, *arguments, timeout_s=self._timeout_s)

    def finished(self, result: Any) -> Any:
        """The result itself, or of a coroutine what it comes to; called in the thread."""
        if not inspect.isawaitable(result):
            return result
        self._runner = self._runner or asyncio.Runner()
        return self._runner.run(_awaited(result))

    def close(self, last: Callable[[], None] | None) -> None:
        """Ends the thread after `last`; does not wait."""

        def end() -> None:
            try:
                if last is not None:
                    last()
            finally:
                if self._runner is not None:
                    self._runner.close()

        if self._thread is not None:
            self._thread.close(end)

    def is_abandoned(self, is_late: bool) -> bool:
        """Whether the thread may never end. `is_late`: the episode has run out of time."""
        thread = self._thread
        return thread is not None and (thread.is_hung or (is_late and thread.was_left_busy))


async def _awaited(result: Awaitable[Any]) -> Any:
    return await result


@dataclass(frozen=True)
class _World:
    tools: ToolBox
    thread: UserThread
    of_class: ClassTools | None


class ToolPlayer(SessionPlayer):
    """The policy gets a task and tools. What it calls is called, and it answers again, until it calls nothing."""

    def __init__(
        self,
        rules: EpisodeRules,
        encoder: ChatEncoder,
        generate: Generate,
        servers: ToolServers,
        turnstile: asyncio.Semaphore | None = None,
    ):
        super().__init__(rules)
        self._encoder, self._generate = encoder, generate
        self._parser, self._renderer = Parser(encoder), Renderer(encoder)
        self._servers, self._turnstile = servers, turnstile
        self._worlds: dict[Session, _World] = {}

    async def stop(self) -> None:
        """Ends the servers that episodes share."""
        await self._servers.close()

    def _open(self, job: EpisodeJob, attempt: int, counts: Counts, task: Mapping[str, Any]) -> Session:
        """A session that no request reaches: it has no key."""
        session = Session(
            session_id=f"{job.name}-{attempt}",
            key="",
            job=job,
            attempt=attempt,
            rules=self._rules,
            transcripts={"": Transcript(self._renderer)},
            parser=self._parser,
            generate=self._generate,
            counts=counts,
            task=task,
        )
        thread = UserThread(session.session_id, self._turnstile, self._rules.step_timeout_s)
        config = self._rules.config
        own = None if config.tool_class is None else ClassTools(config.tool_class, config.env_config, thread)
        sets: dict[str, ToolSet] = {} if own is None else {"tool_class": own}
        self._worlds[session] = _World(ToolBox(sets | self._servers.episode()), thread, own)
        return session

    async def _close(self, session: Session) -> None:
        await session.close()
        if (world := self._worlds.pop(session, None)) is None:
            return
        world.thread.close(None if world.of_class is None else world.of_class.end)
        is_late = session.deadline is not None and session.deadline.expired()
        self.num_abandoned_threads += world.thread.is_abandoned(is_late)
        await world.tools.close()

    async def _play(self, job: EpisodeJob, attempt: int, session: Session, task: Mapping[str, Any]) -> None:
        world, counts, accepted = self._worlds[session], session.transcript.counts, self._accepted(task)
        counts[TOOL_CALLS] = counts[TOOL_ERRORS] = 0
        shown = None if world.of_class is None else await world.of_class.begin(task)
        schemas = await world.tools.open()
        messages = self._first(task, shown)
        await self._converse(session, world.tools, schemas, messages)
        counts[SERVER_DEATHS] = world.tools.num_deaths
        await self._reward(session, world, task, messages, accepted)

    def _accepted(self, task: Mapping[str, Any]) -> Sequence[str]:
        """The right answers of a task, of which nothing is played where there are none."""
        key = self._rules.config.answer_key
        if key is None:
            return ()
        if (truth := entry_at(task, key)) is None:
            raise EnvError(f"answer_key: the task has no column {key!r}; it has {', '.join(task)}")
        try:
            return accepted_answers(truth, options_in(task))
        except ValueError as error:
            raise EnvError(f"answer_key: column {key!r} of the task {error}") from None

    def _first(self, task: Mapping[str, Any], shown: str | None) -> list[ChatMessage]:
        """The messages of the task, with what the class showed behind the last one."""
        config = self._rules.config
        question = task.get(config.question_key)
        if question is None and not shown:
            raise EnvError(
                f"the task has no column {config.question_key!r}; it has {', '.join(task)}. Set question_key, or let "
                "reset of tool_class return what is asked"
            )
        given = question if isinstance(question, list) else [{"role": USER, "content": as_text(question)}]
        try:
            messages = list(read_messages(given))
        except Refusal as refusal:
            raise EnvError(f"column {config.question_key!r} of the task is no conversation: {refusal}") from None
        if shown:
            if not messages or messages[-1].role != USER:
                messages.append(ChatMessage(USER))
            messages[-1] = replace(messages[-1], content=messages[-1].content + _readable(shown))
        if config.agent_system_template and all(message.role != SYSTEM for message in messages):
            messages.insert(0, ChatMessage(SYSTEM, config.agent_system_template))
        return messages

    async def _converse(
        self, session: Session, tools: ToolBox, schemas: Sequence[Schema], messages: list[ChatMessage]
    ) -> None:
        """Adds answers and results to the messages until an answer calls nothing, or no more fits."""
        for _ in range(self._rules.config.max_steps):
            try:
                reply = await session.complete(ChatCall(tuple(messages), tuple(schemas)))
            except Refusal as refusal:
                if session.error is not None:
                    raise session.error from None
                if refusal.code == "context_length_exceeded" and session.num_answers:
                    session.transcript.counts[SEQUENCE_CUT] = 1
                    return
                raise EnvError(str(refusal)) from None
            reply.deliver()
            session.num_answers += 1
            (answer,) = reply.answers
            messages.append(answer.message)
            if answer.is_malformed:
                text = CUT if answer.generation.finish_reason == "length" else UNREADABLE
                messages.append(self._unreadable(session, schemas, messages, text))
            elif answer.message.calls:
                messages += await self._results(session, tools, answer.message.calls)
            else:
                return

    def _unreadable(
        self, session: Session, schemas: Sequence[Schema], messages: Sequence[ChatMessage], text: str
    ) -> ChatMessage:
        """Return the message after a call that cannot be parsed: a result without a call, or, if the chat template
        accepts none, a message of the user."""
        session.transcript.counts[TOOL_CALLS] += 1
        session.transcript.counts[TOOL_ERRORS] += 1
        message = ChatMessage(TOOL, text)
        try:
            self._renderer.whole([*messages, message], schemas)
        except RenderRefused:
            return ChatMessage(USER, text)
        return message

    async def _results(self, session: Session, tools: ToolBox, calls: Sequence[Call]) -> list[ChatMessage]:
        results: dict[int, str] = {}
        in_order: list[int] = []
        at_once: list[asyncio.Task[None]] = []

        async def answer(place: int) -> None:
            results[place] = await self._result(session, tools, calls[place])

        try:
            for place, call in enumerate(calls):
                if tools.is_parallel(call.name):
                    at_once.append(start(answer(place)))
                else:
                    in_order.append(place)
            for place in in_order:
                await answer(place)
            await asyncio.gather(*at_once)
        finally:
            for task in at_once:
                task.cancel()
            await asyncio.gather(*at_once, return_exceptions=True)
        return [
            ChatMessage(TOOL, results[place], call_id=call.call_id, name=call.name) for place, call in enumerate(calls)
        ]

    async def _result(self, session: Session, tools: ToolBox, call: Call) -> str:
        counts = session.transcript.counts
        counts[TOOL_CALLS] += 1
        try:
            text = await tools.call(call.name, json.loads(call.arguments))
        except ToolError as error:
            counts[TOOL_ERRORS] += 1
            text = f"Error: {error}"
        most = self._rules.config.max_result_tokens
        return cut_in_middle(_readable(text), most, lambda part: len(self._encoder.encode(part)))

    async def _reward(
        self,
        session: Session,
        world: _World,
        task: Mapping[str, Any],
        messages: Sequence[ChatMessage],
        accepted: Sequence[str],
    ) -> None:
        config = self._rules.config
        if config.answer_key is not None:
            last = messages[-1]
            answer = last.content.strip() if last.role == ASSISTANT and not last.calls else None  # else it was cut off
            is_right = answer in accepted
            self._judge(session, {"reward": float(is_right), "metrics": {"success": float(is_right)}})
        elif config.reward is not None:
            shown = [message.for_template() for message in messages]
            self._judge(session, await world.thread.call("reward", self._judged, world.thread, task, shown))
        else:
            assert world.of_class is not None
            self._judge(session, await world.of_class.reward())

    def _judged(self, thread: UserThread, task: Mapping[str, Any], messages: Sequence[Mapping[str, Any]]) -> Any:
        function: Any = resolve(str(self._rules.config.reward))
        return thread.finished(function(dict(task), list(messages)))

    def _rows(self, job: EpisodeJob, session: Session, counts: Counts) -> list[Trajectory]:
        rows = super()._rows(job, session, counts)
        if session.transcript.counts[SEQUENCE_CUT]:
            rows[-1] = replace(rows[-1], finish_reason="length")
        return rows


def _readable(text: str) -> str:
    """The text without halves of surrogate pairs, which no tokenizer takes."""
    return text.encode("utf-8", "replace").decode()
