"""Interface of an environment: an object for one episode, played in text, or in text about pictures."""

import math
import random
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import regex

from roll.errors import EnvError

VALID = "action_is_valid"
SUCCESS = "success"
Message = Mapping[str, Any]
"""A message as chat templates know it: `role`, `content`, and what else a role has (`tool_calls`)."""


class EnvStep(NamedTuple):
    """Result of an action. `terminated`: the episode is over by its own rules; `truncated`: it was cut off.

    `observation` is a text. With env_manager_cls: vl_trajectory it may be a picture as well (a PIL image, uint8 [h, w,
    3], or a file's bytes), or a mapping with `prompt`, a text that has <image> where pictures stand, and `image`, the
    picture or a list of them.

    `metrics` are numbers for the record. `action_is_valid` 0 says that the action was none, and costs the format
    penalty; `success` 0 or 1 counts as it was after the last step; of all others the mean over the steps is taken.
    """

    observation: Any
    reward: float
    terminated: bool
    truncated: bool
    metrics: Mapping[str, float]


class Env(ABC):
    """One episode: `reset` once, `step` until it is over, `close`. All calls come from one thread.

    The same seed and the same actions give the same episode, in any process. Any text is a possible action: one that
    means nothing changes nothing, counts as a step, and reports `action_is_valid` 0.
    """

    instruction: str = ""
    """Description of the game and its actions: {env_instruction} of the prompt template."""
    reward_range: tuple[float, float] = (-math.inf, math.inf)
    """Least and greatest sum of the rewards of an episode."""

    @abstractmethod
    def reset(self, seed: int) -> Any:
        """The first observation: a text, or what EnvStep says."""

    @abstractmethod
    def step(self, action: str) -> EnvStep:
        """Take an action and return its result."""

    def random_action(self, rng: random.Random) -> str:
        """An action that means something, drawn at random, for checks."""
        return ""

    def close(self) -> None:
        """Frees what the episode held. Called once, also after a failure."""
        return


@dataclass(frozen=True)
class Conversation:
    """Conversation that an environment for env_manager_cls: agent_native returns from `conversation()`: all that the
    policy sees at this turn. `tools` are JSON schemas for the chat template."""

    messages: Sequence[Message]
    tools: Sequence[Mapping[str, Any]] = ()


def draws_actions(env: Any) -> bool:
    return isinstance(env, Env) and type(env).random_action is not Env.random_action


# Finding the action in an answer.

_LIMIT_S = 1.0


class ActionPattern:
    """A user's regular expression, whose last group is the action."""

    def __init__(self, pattern: str):
        self._pattern = regex.compile(pattern, regex.DOTALL)

    def find(self, answer: str) -> str | None:
        """The last group of the first match, without space around it; None if there is no match. Raises EnvError for a
        match without end: all episodes of the process wait meanwhile."""
        try:
            match = self._pattern.search(answer, timeout=_LIMIT_S)
        except TimeoutError:
            text = f"action_pattern took longer than {_LIMIT_S:g} s on a response of {len(answer)} characters"
            raise EnvError(text) from None
        if match is None:
            return None
        return (match[match.re.groups] or "").strip()
