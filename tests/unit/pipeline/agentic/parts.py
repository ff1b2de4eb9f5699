"""What agentic tests share: a scripted policy, environments that misbehave, and players without Ray."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from roll.envs.base import Env, EnvStep
from roll.envs.config import EnvConfig
from roll.pipeline.agentic.episode import EpisodeJob, EpisodePlayer, EpisodeRules
from roll.pipeline.agentic.sample_forms import FORMS, ChatEncoder
from roll.types.rollout import Generate, Generation, GenerationRequest, SamplingParams
from tests.toys import Mute


class Script:
    """A policy that says given texts in turn, `<|im_end|>` behind each unless it is cut; log-prob of token t of turn k
    is -(k + t / 100), its version k."""

    def __init__(self, encoder: ChatEncoder, texts: Sequence[str], delay_s: float = 0.0):
        self.encoder, self.texts, self.delay_s = encoder, list(texts), delay_s
        self.requests: list[GenerationRequest] = []

    async def __call__(self, request: GenerationRequest) -> list[Generation]:
        turn = int(request.request_id.rsplit("-", 1)[1])
        self.requests.append(request)
        await asyncio.sleep(self.delay_s)
        text = self.texts[turn % len(self.texts)]
        ids = self.encoder.encode(text + "<|im_end|>")[: request.sampling.max_new_tokens]
        finish = "stop" if self.encoder.show(ids).endswith("<|im_end|>") else "length"
        log_probs = -(turn + np.arange(len(ids)) / 100).astype(np.float32)
        return [Generation(ids, log_probs, np.full(len(ids), turn, np.int32), finish)]


class Corridor(Env):
    """Say go `length` times: 0.5 for each, and the end. Anything else is invalid."""

    instruction = "Say go."

    def __init__(self, length: int = 3):
        self.length = length

    def reset(self, seed: int) -> str:
        self.place, self.seed = 0, seed
        return f"at 0 of {self.length}"

    def step(self, action: str) -> EnvStep:
        valid = action == "go"
        self.place += valid
        over = self.place >= self.length
        metrics = {"action_is_valid": float(valid), "success": float(over), "place": float(self.place)}
        return EnvStep(f"at {self.place} of {self.length}", 0.5 * valid, over, False, metrics)


class Misbehaving(Corridor):
    """`how` it fails at its second step in episodes whose seed is one of `seeds`: raise, hang, slow, nan,
    large, surrogate, none."""

    builds = 0

    def __init__(self, how: str, seeds: Sequence[int] = (1,), first_builds: int = 1000, length: int = 3):
        super().__init__(length)
        Misbehaving.builds += 1
        self.how, self.seeds = how, tuple(seeds)
        self.fails = Misbehaving.builds <= first_builds

    def step(self, action: str) -> EnvStep:
        if self.place == 1 and self.seed in self.seeds and self.fails:
            if self.how == "raise":
                raise ValueError("the ice broke")
            if self.how == "hang":
                threading.Event().wait(30)
            if self.how == "slow":
                time.sleep(0.15)
            if self.how == "large":
                return EnvStep("", 1e39, False, False, {})
            if self.how == "nan":
                return EnvStep("", float("nan"), False, False, {})
            if self.how == "surrogate":
                return EnvStep("half a pair: \ud800", 0.0, False, False, {})
            if self.how == "none":
                return None  # type: ignore[return-value]
            if self.how == "interrupt":
                raise KeyboardInterrupt("as Ctrl-C")
            if self.how == "exit":
                raise SystemExit(3)
            if self.how == "mute":
                raise Mute
            if self.how == "odd":
                return EnvStep("", Odd(), False, False, {})  # type: ignore[arg-type]
        return super().step(action)


class Odd:
    """A reward that leaves the process when it is looked at."""

    def __float__(self) -> float:
        raise SystemExit(4)


class Crowded(Corridor):
    """Counts the calls, into all of its kind, that run at once."""

    lock = threading.Lock()
    num_now = num_most = num_closed = 0

    def __init__(self, length: int = 3, step_s: float = 0.05):
        super().__init__(length)
        self.step_s = step_s

    def step(self, action: str) -> EnvStep:
        self.visit(self.step_s)
        return super().step(action)

    def close(self) -> None:
        self.visit(0.05)
        Crowded.num_closed += 1

    def visit(self, seconds: float) -> None:
        with self.lock:
            Crowded.num_now += 1
            Crowded.num_most = max(Crowded.num_most, Crowded.num_now)
        time.sleep(seconds)
        with self.lock:
            Crowded.num_now -= 1


GO = "<answer>go</answer>"


def env_config(**changes: Any) -> EnvConfig:
    return EnvConfig.model_validate(
        {"env_type": "tests.unit.pipeline.agentic.parts:Corridor", "max_steps": 5} | changes
    )


def rules(config: EnvConfig, **changes: Any) -> EpisodeRules:
    values: dict[str, Any] = {
        "config": config,
        "sampling": SamplingParams(64),
        "max_length": 400,
        "max_answer_tokens": config.max_tokens_per_step or 16,
        "format_penalty": config.format_penalty or 0.0,
        "seed": 3,
        "step_timeout_s": 10.0,
        "episode_timeout_s": 60.0,
        "retries": 0,
    }
    return EpisodeRules(**(values | changes))


def player(
    encoder: ChatEncoder,
    script: Generate,
    config: EnvConfig,
    turnstile: asyncio.Semaphore | None = None,
    **changes: Any,
) -> EpisodePlayer:
    r = rules(config, **changes)
    form = FORMS[config.env_manager_cls](config, encoder, r.max_length, reserve=r.max_answer_tokens or 16)
    return EpisodePlayer(r, encoder, form, script, turnstile)


def job(seed: int = 0, index: int = 0, group_id: int = 0) -> EpisodeJob:
    return EpisodeJob("Corridor", seed, "train", group_id, index)
