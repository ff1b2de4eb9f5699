"""Environments that keep their conversation themselves, for env_manager_cls: agent_native."""

import random
from collections.abc import Mapping
from typing import Any

from roll.envs.base import VALID, ActionPattern, Conversation, Env, EnvStep
from roll.envs.table import ENVIRONMENTS
from roll.utils.imports import resolve

SYSTEM = "You play a game and want to win it."
SUFFIX = "Answer with your action alone, between tags: <answer>your action</answer>"
REMINDER = "The last answer held no valid action."


class NativeEnv(Env):
    """A text environment as a conversation: a system message with the instruction, then what is seen and what was
    answered in turn. An answer that holds no action is told so in the next message.

    `env` is the name of a shipped environment or `package.module:Class`, `env_config` its arguments. An action is the
    last group of `action_pattern`.
    """

    def __init__(
        self,
        env: str,
        env_config: Mapping[str, Any] | None = None,
        action_pattern: str = "<answer>(.*?)</answer>",
        system_template: str = SYSTEM,
        observation_suffix: str = SUFFIX,
        max_steps: int | None = None,
    ):
        constructor: Any = resolve(env, ENVIRONMENTS)
        self._env: Env = constructor(**({} if max_steps is None else {"max_steps": max_steps}), **(env_config or {}))
        self._pattern = ActionPattern(action_pattern)
        self._system, self._suffix = system_template, observation_suffix
        self.instruction = self._env.instruction
        self.reward_range = self._env.reward_range

    def reset(self, seed: int) -> str:
        observation = self._env.reset(seed)
        self._messages: list[dict[str, str]] = []
        if system := "\n\n".join(part for part in (self._system, self.instruction) if part):
            self._messages.append({"role": "system", "content": system})
        self._show(observation)
        return observation

    def step(self, action: str) -> EnvStep:
        """`action` is the whole answer."""
        chosen = self._pattern.find(action)
        step = self._env.step(chosen or "")
        valid = chosen is not None and step.metrics.get(VALID, 1.0) > 0
        self._messages.append({"role": "assistant", "content": action})
        self._show(step.observation if valid else f"{REMINDER}\n{step.observation}")
        return step._replace(metrics={**step.metrics, VALID: float(valid)})

    def conversation(self) -> Conversation:
        return Conversation(self._messages)

    def random_action(self, rng: random.Random) -> str:
        return self._answer(self._env.random_action(rng))

    def close(self) -> None:
        self._env.close()

    def _answer(self, action: str) -> str:
        tagged = f"<answer>{action}</answer>"
        return tagged if self._pattern.find(tagged) == action else action

    def _show(self, observation: str) -> None:
        content = "\n".join(part for part in (observation, self._suffix) if part)
        self._messages.append({"role": "user", "content": content})


class ShippedGame(NativeEnv):
    """One of the shipped environments as a conversation. Besides the keys named here, `env_config` has those of the
    game."""

    game: str

    def __init__(
        self,
        action_pattern: str = "<answer>(.*?)</answer>",
        system_template: str = SYSTEM,
        observation_suffix: str = SUFFIX,
        max_steps: int | None = None,
        **of_the_game: Any,
    ):
        super().__init__(self.game, of_the_game, action_pattern, system_template, observation_suffix, max_steps)


class SokobanNative(ShippedGame):
    """Sokoban as a conversation."""

    game = "sokoban"


class FrozenLakeNative(ShippedGame):
    """The game Frozen Lake as a conversation."""

    game = "frozen_lake"
