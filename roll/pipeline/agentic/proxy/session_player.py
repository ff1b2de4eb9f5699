"""Base of session players: attempts, their limits and failures, and sampled tokens as training rows."""

import asyncio
import json
import logging
from abc import abstractmethod
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from operator import itemgetter
from pathlib import Path
from typing import Any

from roll.envs.adapters.harbor import HarborTasks
from roll.errors import EnvError, describe
from roll.pipeline.agentic.episode import Counts, EpisodeJob, EpisodeRules, Player
from roll.pipeline.agentic.proxy.endpoint.reward import Outcome, outcome_of
from roll.pipeline.agentic.proxy.endpoint.session import Session
from roll.pipeline.agentic.proxy.metrics import session_metrics
from roll.pipeline.agentic.proxy.transcript.message import ASSISTANT, ChatMessage
from roll.pipeline.agentic.proxy.transcript.transcript import Transcript
from roll.pipeline.agentic.proxy.transcript.tree import Answer, Node
from roll.pipeline.agentic.sample_forms import state_key
from roll.types.rollout import Trajectory
from roll.types.texts import ParsedMessage, Turn
from roll.utils.imports import resolve

# The tasks of episodes in sessions: rows of a file, or of an object of the user's own.


class Tasks:
    """`source`: a file of JSON lines; a folder of Harbor tasks; or package.module:name of what has a length and items,
    or is called without arguments for such. None: tasks hold nothing but their seed."""

    def __init__(self, source: str | None):
        self._source = source

    def of(self, seed: int) -> dict[str, Any]:
        """Row `seed` modulo their number, as a program will read it from JSON. Raises EnvError if there is none."""
        if self._source is None:
            return {}
        try:
            row = dict(self._rows[seed % len(self._rows)])
        except Exception as error:
            raise EnvError(f"tasks: {self._source} cannot be read: {describe(error)}") from None
        try:
            return json.loads(json.dumps(row, default=_of_library))
        except (TypeError, ValueError) as error:
            raise EnvError(
                f"tasks: a row of {self._source} cannot be written as JSON, which programs read: {describe(error)}. "
                "Turn its columns into texts, numbers, lists or mappings."
            ) from None

    @cached_property
    def _rows(self) -> Any:
        source = str(self._source)
        if source.endswith(".json"):
            return json.loads(Path(source).expanduser().read_text(encoding="utf-8"))
        if source.endswith(".jsonl"):
            lines = Path(source).expanduser().read_text(encoding="utf-8").splitlines()
            return [json.loads(line) for line in lines if line.strip()]
        if ":" not in source:
            return HarborTasks(source)
        program: Any = resolve(source)
        return program() if callable(program) else program


def _of_library(value: Any) -> Any:
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"it holds {type(value).__name__}")


logger = logging.getLogger(__name__)


class SessionPlayer(Player):
    """Plays each episode in a session, which may come to a row for each branch of its conversation."""

    def __init__(self, rules: EpisodeRules):
        super().__init__(rules)
        self._tasks = Tasks(rules.config.tasks)
        self._reported_causes: set[str] = set()  # causes of breaks

    async def play(self, job: EpisodeJob, counts: Counts | None = None) -> list[Trajectory]:
        await self._ready()
        self._tasks.of(job.env_seed)  # tasks that cannot be read end the job, not an attempt
        return await super().play(job, counts)

    async def _attempt(self, job: EpisodeJob, attempt: int, counts: Counts) -> list[Trajectory]:
        task = {**self._tasks.of(job.env_seed), "seed": job.env_seed}
        session = self._open(job, attempt, counts, task)
        try:
            async with asyncio.timeout(self._rules.episode_timeout_s) as clock:
                session.deadline = clock
                await self._play(job, attempt, session, task)
        finally:
            await self._close(session)
        return self._rows(job, session, counts)

    async def stop(self) -> None:
        """Ends what episodes share."""

    async def _ready(self) -> None:
        """Starts what every session needs."""

    @abstractmethod
    def _open(self, job: EpisodeJob, attempt: int, counts: Counts, task: Mapping[str, Any]) -> Session:
        """A new session."""

    @abstractmethod
    async def _play(self, job: EpisodeJob, attempt: int, session: Session, task: Mapping[str, Any]) -> None:
        """Plays until the session has its reward. Raises EnvCrash and EnvHang for what another attempt may mend, and
        EnvError."""

    async def _close(self, session: Session) -> None:
        await session.close()

    def _judge(self, session: Session, outcome: Any) -> None:
        """Takes a reward, or a mapping with reward and metrics, from whoever plays or judges. Raises EnvError."""
        try:
            posted = {} if session.outcome is None else session.outcome.metrics
            earned = outcome_of(outcome, session.sides)
            session.give(replace(earned, metrics={**posted, **earned.metrics}))
        except ValueError as error:
            raise EnvError(f"the {self.who} gave no reward: {error}") from None

    def _rows(self, job: EpisodeJob, session: Session, counts: Counts) -> list[Trajectory]:
        transcript, outcome = session.transcript, session.outcome
        row_pairs = [(side, *pair) for side, own in session.transcripts.items() for pair in own.rows()]
        if not row_pairs or outcome is None:
            raise EnvError(f"no response reached the {self.who}")
        for one in transcript.breaks:
            if one.cause not in self._reported_causes:
                self._reported_causes.add(one.cause)
                logger.info("%s: %s. Each such request starts a new training row.", job.name, one.text())
        sides = list(session.transcripts)
        last = {side: number for number, (side, _, _) in enumerate(row_pairs)}
        rows: list[Trajectory] = []
        for number, (side, row, answer) in enumerate(row_pairs):
            assert row.turn_rewards is not None
            if last[side] == number:
                row.turn_rewards[-1] = outcome.of(side)
            key = state_key(answer.history[-2].content if len(answer.history) > 1 else "")
            earned, place = outcome.of(side), sides.index(side)
            rows.append(replace(row, reward=earned, index=job.index, turn=number, side=place, state_key=key))
        answers = _answers(session.transcripts)
        turns = _turns(answers, outcome)
        measured = session_metrics(transcript, len(rows), session.num_answers, outcome.metrics)
        requests = [request for request, _, _ in answers]
        breaks = [one.as_dict() | {"turn": bisect_left(requests, one.request) + 1} for one in transcript.breaks]
        witness = {"witness": breaks} if breaks else {}
        text = "\n".join(turn.response for turn in turns)
        extra = witness | self._extra(job, session.attempt)
        rows[0] = replace(rows[0], metrics=measured | counts.metrics(), extra=extra, turns=turns, response_text=text)
        return rows


def _answers(transcripts: Mapping[str, Transcript]) -> list[tuple[int, str, Node]]:
    """The request of every answer that was received, its side and where it ends, in the order of requests."""
    nodes = ((side, node) for side, own in transcripts.items() for node in own.root.below() if node.is_end)
    answers = [(node.answer.request, side, node) for side, node in nodes if node.answer and node.answer.delivered]
    return sorted(answers, key=itemgetter(0))


def _turns(answers: Sequence[tuple[int, str, Node]], outcome: Outcome) -> tuple[Turn, ...]:
    """The answers, each with what was said since the one before; the reward is the last one's of each side. As metrics
    the turn that it continues (0: none), its tokens and its time."""
    last = {side: node for _, side, node in answers}
    places: dict[Answer, int] = {}
    turns: list[Turn] = []
    for number, (_, side, node) in enumerate(answers, 1):
        *path, answer = node.answers()
        places[answer] = number
        before = answer.history[:-1]
        since = max((i + 1 for i, message in enumerate(before) if message.role == ASSISTANT), default=0)
        lines = [f"[{message.role}] {message.content}" for message in before[since:]]
        text = "\n".join((*(f"[{name}]" for name in (side,) if name), *lines))
        calls = "".join(f"\n{call.name}({call.arguments})" for call in answer.message.calls)
        reward = outcome.of(side) if node is last[side] else 0.0
        said = (*map(_said, before[since:]), replace(_said(answer.message), role=side or ASSISTANT))
        num_tokens = answer.generation.num_tokens
        counts = {"after": places.get(path[-1], 0) if path else 0, "tokens": num_tokens}
        counts["prompt_tokens"] = len(node.path_ids()) - num_tokens
        metrics = {name: float(count) for name, count in counts.items()} | {"time_s": answer.time_s}
        turns.append(Turn(text, answer.message.content + calls, None, reward, metrics, said=said))
    return tuple(turns)


def _said(message: ChatMessage) -> ParsedMessage:
    calls = tuple((call.name, call.arguments) for call in message.calls)
    return ParsedMessage(message.role, message.content, message.reasoning, calls)
