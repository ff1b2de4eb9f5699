"""Plays episodes in one process, hundreds at once: every episode is a coroutine, every environment a thread."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING

from roll.distributed.executor.pools.job import FinishedJobs, Job
from roll.distributed.executor.processes.node_facts import own_address
from roll.distributed.executor.rollout.engine_client import RETRIED_REQUESTS, EngineClient
from roll.distributed.executor.rollout.finished_requests import DIRECT_TOKENS
from roll.envs.config import PROXY, TOOL_LOOP, EnvConfig
from roll.errors import describe
from roll.models.tokenizer import tokenizer_of
from roll.models.vision.files import vision_of
from roll.pipeline.agentic.agentic_config import AgenticConfig
from roll.pipeline.agentic.episode import AbortedEpisode, Counts, EpisodeJob, EpisodePlayer, EpisodeRules, Player
from roll.pipeline.agentic.sample_forms import FORMS, ChatEncoder
from roll.pipeline.agentic.settings import episode_rules
from roll.types.batch import SampledRows
from roll.types.collate import sampled_rows, stored
from roll.types.group_codec import TextTable
from roll.types.rollout import Generate, Trajectory
from roll.types.texts import RowTexts
from roll.utils.background import start

if TYPE_CHECKING:
    from roll.envs.tools.servers import ToolServers
    from roll.pipeline.agentic.proxy.endpoint.server import Endpoint
    from roll.pipeline.agentic.proxy.outside.front import FrontAddress
    from roll.pipeline.agentic.proxy.outside.line import Line

logger = logging.getLogger(__name__)

_LINGER_S = 0.002  # after the first result, so that those of the same moment travel together
_MAX_ABANDONED_THREADS = 16  # then the process should be replaced


class Players:
    """One player per tag and purpose, made when it is first needed."""

    def __init__(
        self, config: AgenticConfig, encoder: ChatEncoder, generate: Generate, front: FrontAddress | None = None
    ):
        self._config, self._encoder, self._generate, self._front = config, encoder, generate, front
        self._players: dict[tuple[str, str], Player] = {}
        self._endpoint: Endpoint | None = None
        self._line: Line | None = None
        self._servers: dict[str, ToolServers] = {}
        self._turnstiles: dict[str, asyncio.Semaphore] = {}

    async def play(self, job: EpisodeJob, counts: Counts) -> list[Trajectory]:
        key = (job.tag, job.purpose)
        if key not in self._players:
            self._players[key] = self._make(job.tag, job.purpose)
        return await self._players[key].play(job, counts)

    @property
    def num_abandoned_threads(self) -> int:
        return sum(player.num_abandoned_threads for player in self._players.values())

    def _make(self, tag: str, purpose: str) -> Player:
        rules = episode_rules(self._config, tag, purpose)
        if rules.config.env_manager_cls == PROXY:
            return self._program_player(rules, tag, purpose)
        if rules.config.env_manager_cls == TOOL_LOOP:
            return self._tool_player(rules, tag)
        reserve = min(rules.max_answer_tokens or rules.max_length - self._config.prompt_length, rules.max_length // 2)
        form = FORMS[rules.config.env_manager_cls](rules.config, self._encoder, rules.max_length, max(1, reserve))
        return EpisodePlayer(rules, self._encoder, form, self._generate, self._turnstile(tag, rules.config))

    def _turnstile(self, tag: str, env: EnvConfig) -> asyncio.Semaphore | None:
        if not env.max_env_step_concurrent:
            return None
        return self._turnstiles.setdefault(tag, asyncio.Semaphore(env.max_env_step_concurrent))

    def _program_player(self, rules: EpisodeRules, tag: str, purpose: str) -> Player:
        from roll.pipeline.agentic.proxy.endpoint.server import Endpoint  # brings fastapi
        from roll.pipeline.agentic.proxy.player import OutsidePlayer, ProgramPlayer

        logs = self._logs(tag) / purpose
        if self._front is None:
            self._endpoint = self._endpoint or Endpoint(self._encoder, self._generate)
            return ProgramPlayer(rules, self._endpoint, logs)
        from roll.pipeline.agentic.proxy.outside.line import Line

        here = own_address()
        host = "127.0.0.1" if here == self._front.node else here
        self._endpoint = self._endpoint or Endpoint(self._encoder, self._generate, host)
        self._line = self._line or Line(self._endpoint, self._front, self._config.agent_endpoint.idle_timeout_s)
        if rules.config.is_played_outside:
            return OutsidePlayer(rules, self._endpoint, logs, self._line)
        return ProgramPlayer(rules, self._endpoint, logs)

    def _tool_player(self, rules: EpisodeRules, tag: str) -> Player:
        """Training and validation share the servers of a tag."""
        from roll.envs.tools.servers import ToolServers
        from roll.pipeline.agentic.proxy.tool_player import ToolPlayer

        if tag not in self._servers:
            self._servers[tag] = ToolServers(rules.config.tool_servers, self._logs(tag) / "tool_servers")
        turnstile = self._turnstile(tag, rules.config)
        return ToolPlayer(rules, self._encoder, self._generate, self._servers[tag], turnstile)

    def _logs(self, tag: str) -> Path:
        return Path(self._config.output_dir) / "agents" / tag


class EnvWorker:
    """Worker process of the role `environments`: a JobWorker whose work are EpisodeJobs."""

    def __init__(self, config: AgenticConfig, front: FrontAddress | None, engines: EngineClient):
        tokenizer = tokenizer_of(config.actor_train.model_args)
        data = config.actor_train.data_args
        vision = vision_of(config.actor_train.model_args)
        if vision is not None:
            vision = vision.with_limits(data.image_min_pixels, data.image_max_pixels)
        parses = config.parse_tool_call_parameter_to_dict
        encoder = ChatEncoder(tokenizer, data.template, parses, vision, data.template_kwargs)
        self._players = Players(config, encoder, engines.generate, front)
        self._engines = engines
        self._num_retries_reported = 0
        self._tasks: dict[str, asyncio.Task[list[Trajectory]]] = {}
        self._results: list[tuple[str, list[Trajectory] | AbortedEpisode]] = []
        self._failures: list[tuple[str, str]] = []

    @cached_property
    def _something(self) -> asyncio.Event:
        return asyncio.Event()

    def submit(self, jobs: list[Job]) -> None:
        for job in jobs:
            counts = Counts()
            task = start(self._players.play(job.work, counts))
            self._tasks[job.job_id] = task
            task.add_done_callback(partial(self._ended, job.job_id, counts))

    async def take(self) -> FinishedJobs:
        """Everything that ended since the last take, at least one episode: waits for it."""
        await self._something.wait()
        if self._tasks:
            await asyncio.sleep(_LINGER_S)
        results, self._results = self._results, []
        failures, self._failures = self._failures, []
        self._something.clear()
        tired = self._players.num_abandoned_threads >= _MAX_ABANDONED_THREADS
        num_retries = self._engines.num_retries - self._num_retries_reported
        self._num_retries_reported += num_retries
        return FinishedJobs(tuple(results), tuple(failures), wants_rest=tired, counts={RETRIED_REQUESTS: num_retries})

    async def take_apart(self) -> tuple[FinishedJobs, SampledRows | None, TextTable | None]:
        """The same; of many tokens, or with pictures, only what is known of each episode comes first, then the rows,
        then their texts."""
        finished = await self.take()
        rows = [row for _, episode in finished.results if not isinstance(episode, AbortedEpisode) for row in episode]
        if sum(len(row.input_ids) for row in rows) <= DIRECT_TOKENS and not any(row.media for row in rows):
            return finished, None, None
        following = iter(stored(rows))
        results = tuple(
            (job_id, episode if isinstance(episode, AbortedEpisode) else [next(following) for _ in episode])
            for job_id, episode in finished.results
        )
        texts = TextTable.of([RowTexts(row.response_text, turns=row.turns) for row in rows])
        return replace(finished, results=results), sampled_rows(rows), texts

    def cancel(self, job_ids: list[str]) -> None:
        for job_id in job_ids:
            if job_id in self._tasks:
                self._tasks[job_id].cancel()

    def heartbeat(self) -> None:
        """The loop comes by: episodes keep their own limits."""

    def _ended(self, job_id: str, counts: Counts, task: asyncio.Task[list[Trajectory]]) -> None:
        """Record the end of a task of any kind: a task that is cancelled before its first step runs no line of its
        own."""
        del self._tasks[job_id]
        if task.cancelled():
            self._results.append((job_id, AbortedEpisode(counts.num_tokens)))
        elif (error := task.exception()) is not None:  # an engine that died, or a fault of ours
            logger.debug("episode %s", job_id, exc_info=error)
            self._failures.append((job_id, describe(error)))
        else:
            self._results.append((job_id, task.result()))
        self._something.set()
