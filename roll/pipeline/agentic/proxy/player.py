"""Plays the episodes of an entry with env_manager_cls: proxy: a program asks, the policy answers, and what was sampled
becomes rows."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from roll.errors import EnvError
from roll.pipeline.agentic.env_calls import EnvCrash
from roll.pipeline.agentic.episode import Counts, EpisodeJob, EpisodeRules
from roll.pipeline.agentic.proxy.endpoint.server import Endpoint
from roll.pipeline.agentic.proxy.endpoint.session import Session
from roll.pipeline.agentic.proxy.programs.programs import Ended, Programs
from roll.pipeline.agentic.proxy.programs.sandboxed import shown_task
from roll.pipeline.agentic.proxy.session_player import SessionPlayer
from roll.utils.background import start

if TYPE_CHECKING:
    from roll.pipeline.agentic.proxy.outside.line import Line

_LAST_S = 10.0  # that a program has after the turn limit


class ProgramPlayer(SessionPlayer):
    """Starts a program for every episode, which finds its session at the endpoint."""

    who = "program"
    _is_outside = False

    def __init__(self, rules: EpisodeRules, endpoint: Endpoint, logs: Path):
        super().__init__(rules)
        self._endpoint, self._logs = endpoint, logs
        keys = rules.config
        self._programs = Programs(keys.agent, keys.agent_command, logs, keys.sandbox, keys.env_config, keys.agent_files)

    async def stop(self) -> None:
        """Ends what starts programs, and with it what still runs."""
        await self._programs.stop()

    async def _ready(self) -> None:
        await self._endpoint.start()

    def _open(self, job: EpisodeJob, attempt: int, counts: Counts, task: Mapping[str, Any]) -> Session:
        if (keys := self._rules.config).sandbox:
            task = shown_task(task, keys.agent_truths)
        return self._endpoint.open(job, attempt, self._rules, counts, task, self._is_outside)

    async def _close(self, session: Session) -> None:
        await self._endpoint.close(session)

    async def _play(self, job: EpisodeJob, attempt: int, session: Session, task: Mapping[str, Any]) -> None:
        self._settle(session, await self._until_over(job, attempt, session, task))

    async def _until_over(
        self, job: EpisodeJob, attempt: int, session: Session, task: Mapping[str, Any]
    ) -> Ended | None:
        """How the program ended; None if it was ended some seconds after its last answer."""
        name = f"{job.name}-{attempt}"
        running = start(self._programs.run(name, session.task, self._endpoint.environment(session)))
        limit = start(session.over.wait())
        try:
            await asyncio.wait({running, limit}, return_when=asyncio.FIRST_COMPLETED)
            if not running.done():
                await asyncio.wait({running}, timeout=0 if session.error or session.failure else _LAST_S)
            return await running if running.done() else None
        finally:
            for task_of in (running, limit):
                task_of.cancel()
            await asyncio.gather(running, limit, return_exceptions=True)

    def _extra(self, job: EpisodeJob, attempt: int) -> dict[str, Any]:
        if self._is_outside:
            return {}
        return {"output": str(Path(*self._logs.parts[-3:], f"{job.name}-{attempt}.log"))}

    def _settle(self, session: Session, ended: Ended | None) -> None:
        """Takes the reward of a program that has ended. Raises EnvCrash for one that failed, EnvError for one without
        reward."""
        if session.error is not None:
            raise session.error
        if session.failure:
            raise EnvCrash(session.failure)
        tail = f" ({ended.tail})" if ended is not None and ended.tail else ""
        if ended is not None and ended.code:
            raise EnvCrash(f"the program ended with exit code {ended.code}{tail}")
        result = None if ended is None else ended.result
        if result is not None:
            self._judge(session, result)
        if session.outcome is None:
            late = "; it still ran after its last response (max_steps) and was stopped" if ended is None else ""
            raise EnvError(
                f"the program gave no reward: return one, post it, or write it to ROLL_REWARD_FILE{late}{tail}"
            )
        if not session.num_answers:
            raise EnvError(f"the program never called the policy: does it use OPENAI_BASE_URL?{tail}")


class OutsidePlayer(ProgramPlayer):
    """Plays episodes whose programs run elsewhere and take sessions at the front of the run. The time of an episode
    begins when its session is taken."""

    _is_outside = True

    def __init__(self, rules: EpisodeRules, endpoint: Endpoint, logs: Path, line: Line):
        super().__init__(rules, endpoint, logs)
        self._line = line

    async def _until_over(self, job: EpisodeJob, attempt: int, session: Session, task: Mapping[str, Any]) -> Ended:
        clock, limit_s = session.deadline, self._rules.episode_timeout_s
        if clock is not None:
            clock.reschedule(None)
        await self._line.wait(session, job)
        if clock is not None and limit_s is not None:
            clock.reschedule(asyncio.get_running_loop().time() + limit_s)
        await self._line.play(session)
        return Ended(0, None, "")
