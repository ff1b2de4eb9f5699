"""Any environment of GEM (github.com/axon-rl/gem): text in, text out, with Gymnasium's calls."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from roll.envs.base import SUCCESS, VALID, Env, EnvStep
from roll.envs.gymnasium import numbers
from roll.errors import MissingPackage
from roll.utils.imports import is_installed, resolve


class GemEnv(Env):
    """`env` is a GEM id (`game:GuessTheNumber-v0`, needs the package `gem-llm`) or a class `package.module:Class` with
    GEM's interface; `kwargs` go to it. A dotted path has no digits after a dash, an id has.

    GEM ends many games as terminated and truncated at once, with a part of the reward where turns ran out: such an
    episode was won if its last step earned 1, and was cut off otherwise.
    """

    def __init__(
        self, env: str, kwargs: Mapping[str, Any] | None = None, instruction: str = "", max_steps: int | None = None
    ):
        self._env = self._make(env, dict(kwargs or {}))
        self.instruction = instruction
        self._max_steps = max_steps

    def _make(self, env: str, kwargs: dict[str, Any]) -> Any:
        module, _, name = env.partition(":")
        if name.isidentifier() and all(part.isidentifier() for part in module.split(".")):
            constructor: Any = resolve(env)
            return constructor(**kwargs)
        if not is_installed("gem"):
            raise MissingPackage(f"{env!r} is an id of GEM and needs the package gem-llm; or give package.module:Class")
        make: Any = resolve("gem:make")
        return make(env, **kwargs)

    def reset(self, seed: int) -> str:
        observation, _ = self._env.reset(seed=seed)
        self._steps = 0
        return str(observation)

    def step(self, action: str) -> EnvStep:
        self._steps += 1
        observation, reward, terminated, truncated, info = self._env.step(action)
        over, cut, earned = bool(terminated), bool(truncated), float(reward)
        won = over and (earned >= 1 if cut else earned > 0)
        if over and cut:
            over, cut = won, not won
        metrics = numbers(info)
        metrics.setdefault(SUCCESS, float(won))
        metrics.setdefault(VALID, 1.0)
        cut = cut or (self._max_steps is not None and self._steps >= self._max_steps and not over)
        return EnvStep(str(observation), earned, over, cut, metrics)

    def random_action(self, rng: random.Random) -> str:
        sample = getattr(self._env, "sample_random_action", None)  # an environment of GEM's, not of ours
        return str(sample()) if sample is not None else ""

    def close(self) -> None:
        close = getattr(self._env, "close", None)
        if close is not None:
            close()
