"""What a taskset is, to those who have an environment play its tasks."""

from __future__ import annotations

import json
import os
import urllib.request
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any


@dataclass
class EvalClientConfig:
    base_url: str
    api_key_var: str


@dataclass
class ModelContext:
    model: str
    client: EvalClientConfig


@dataclass
class Error:
    type: str
    message: str


@dataclass
class AgentInfo:
    trainable: bool = True


@dataclass
class Reward:
    value: float


@dataclass
class Trace:
    agent: AgentInfo
    rewards: dict[str, Reward | None] = field(default_factory=dict)
    metrics: dict[str, float | None] = field(default_factory=dict)
    errors: list[Error] = field(default_factory=list)
    is_truncated: bool = False

    @property
    def reward(self) -> float:
        return sum(reward.value for reward in self.rewards.values() if reward is not None)


@dataclass
class Episode:
    ok: bool = False
    errors: list[Error] = field(default_factory=list)
    traces: list[Trace] = field(default_factory=list)


class Counting:
    """Its tasks are to say a number."""

    def __init__(self, num: int):
        self.bounded, self._num = num >= 0, num

    def __iter__(self) -> Iterator[int]:
        return iter(range(self._num))


class CountingEnv:
    """Asks for the number of its task in two turns, and a judge that is not trained. `scores` and `breaks`: whether it
    has a reward, and whether it fails."""

    def __init__(self, config: Mapping[str, Any]):
        assert config["taskset"]["id"] == "counting"
        self.taskset, self._config = Counting(config["taskset"].get("num", 3)), config
        self._is_serving = False

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        self._is_serving = True
        yield
        self._is_serving = False

    async def run_episode(self, task: int, ctx: ModelContext) -> Episode:
        assert self._is_serving
        if self._config.get("breaks"):
            failed = Trace(AgentInfo(), errors=[Error("ProviderError", "refused")])
            return Episode(traces=[failed])
        messages, said = [{"role": "user", "content": f"say {task}"}], []
        for _ in range(2):
            headers = {"Authorization": f"Bearer {os.environ[ctx.client.api_key_var]}"}
            body = json.dumps({"model": ctx.model, "messages": messages}).encode()
            request = urllib.request.Request(f"{ctx.client.base_url}/chat/completions", body, headers)
            with urllib.request.urlopen(request) as reply:
                messages.append(json.load(reply)["choices"][0]["message"])
            said.append(messages[-1]["content"])
            messages.append({"role": "user", "content": "again"})
        right = sum(text == str(task) for text in said) / 2
        reward = Reward(right) if self._config.get("scores", True) else None
        player = Trace(AgentInfo(), {"right": reward, "late": None}, {"right": right, "unknown": None})
        judge = Trace(AgentInfo(trainable=False), {"own": Reward(9.0)})
        return Episode(ok=True, traces=[player, judge])


def resolve_env_config(data: Mapping[str, Any]) -> Mapping[str, Any]:
    return data


def load_environment(config: Mapping[str, Any]) -> CountingEnv:
    return CountingEnv(config)
