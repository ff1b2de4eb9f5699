"""Any Gymnasium environment that can be played in text."""

import math
import random
from collections.abc import Mapping, Sequence
from typing import Any

from roll.envs.base import SUCCESS, VALID, Env, EnvStep
from roll.errors import MissingPackage
from roll.utils.imports import is_installed, resolve


def numbers(info: Mapping[str, Any]) -> dict[str, float]:
    """Entries of an info mapping that are single finite numbers."""
    values: dict[str, float] = {}
    for name, value in info.items():
        if isinstance(value, bool | int | float) and math.isfinite(value):
            values[str(name)] = float(value)
    return values


def _made(env: str, kwargs: Mapping[str, Any] | None, module: str, package: str) -> Any:
    path, _, name = env.partition(":")
    constructor: Any
    if name.isidentifier() and all(part.isidentifier() for part in path.split(".")):
        constructor = resolve(env)
        return constructor(**(kwargs or {}))
    if not is_installed(module):
        raise MissingPackage(f"{env!r} is an id and needs the package {package}; or give package.module:Class")
    constructor = resolve(f"{module}:make")
    return constructor(env, **(kwargs or {}))


class GymnasiumEnv(Env):
    """`env` is a registered id (`FrozenLake-v1`) or a class `package.module:Class`; `kwargs` go to it.

    A discrete action is written as one of `actions` (names of 0, 1, ...) or as its number; a text action goes through
    as it is. An observation that is no text is shown as Python shows it. The episode counts as a success if info says
    so (`success` or `is_success`), or else if it ended by itself with a reward above `success_reward`.
    """

    def __init__(
        self,
        env: str,
        kwargs: Mapping[str, Any] | None = None,
        actions: Sequence[str] = (),
        instruction: str = "",
        success_reward: float = 0.0,
        max_steps: int | None = None,
    ):
        if isinstance(actions, str):
            raise ValueError(f"actions: {actions!r} must be a list of names, such as [Left, Down, Right, Up]")
        self._env = _made(env, kwargs, "gymnasium", "gymnasium")
        self._actions = {name.lower(): i for i, name in enumerate(actions)}
        self._names = tuple(actions)
        self.instruction = instruction
        self._success_reward, self._max_steps = success_reward, max_steps

    def reset(self, seed: int) -> str:
        observation, _ = self._env.reset(seed=seed)
        self._last, self._steps = _text(observation), 0
        return self._last

    def step(self, action: str) -> EnvStep:
        self._steps += 1
        value = self._action(action)
        cut = self._max_steps is not None and self._steps >= self._max_steps
        if value is None:
            return EnvStep(self._last, 0.0, False, cut, {VALID: 0.0, SUCCESS: 0.0})
        observation, reward, terminated, truncated, info = self._env.step(value)
        self._last = _text(observation)
        metrics = numbers(info)
        won = bool(terminated) and float(reward) > self._success_reward
        metrics[SUCCESS] = metrics.get(SUCCESS, metrics.get("is_success", float(won)))
        metrics.setdefault(VALID, 1.0)
        truncated = bool(truncated) or (cut and not terminated)
        return EnvStep(self._last, float(reward), bool(terminated), truncated, metrics)

    def random_action(self, rng: random.Random) -> str:
        if self._names:
            return rng.choice(self._names)
        space = self._env.action_space
        space.seed(rng.randrange(1 << 30))
        return str(space.sample())

    def close(self) -> None:
        self._env.close()

    def _action(self, text: str) -> Any:
        count = getattr(self._env.action_space, "n", None)  # a space of Gymnasium's, not of ours
        if count is None:
            return text
        word = text.strip().lower()
        if word in self._actions:
            return self._actions[word]
        return int(word) if word.isascii() and word.isdigit() and len(word) < 9 and int(word) < int(count) else None


def _text(observation: Any) -> str:
    return observation if isinstance(observation, str) else str(observation)


# Any environment of GEM (github.com/axon-rl/gem): text in, text out, with Gymnasium's calls.


class GemEnv(Env):
    """`env` is a GEM id (`game:GuessTheNumber-v0`, needs the package `gem-llm`) or a class `package.module:Class` with
    GEM's interface; `kwargs` go to it. A dotted path has no digits after a dash, an id has.

    GEM ends many games as terminated and truncated at once, with a part of the reward where turns ran out: such an
    episode was won if its last step earned 1, and was cut off otherwise.
    """

    def __init__(
        self, env: str, kwargs: Mapping[str, Any] | None = None, instruction: str = "", max_steps: int | None = None
    ):
        self._env = _made(env, kwargs, "gem", "gem-llm")
        self.instruction = instruction
        self._max_steps = max_steps

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
