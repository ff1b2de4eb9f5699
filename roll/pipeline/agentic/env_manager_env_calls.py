"""What the env manager asks of a user's class, and what it takes back. All of it happens in the environment's thread,
so that whatever the class raises is its own failure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from roll.configs.limits import LARGEST_REWARD
from roll.envs.base import VALID, Conversation, EnvStep
from roll.envs.tools.base import ToolEnv
from roll.pipeline.agentic.env_calls import EnvCrash
from roll.utils.text import visible


@dataclass(frozen=True)
class Seen:
    """What an environment shows: its observation, and the conversation if it keeps one itself."""

    text: str
    conversation: Conversation | None = None


def reset_env(env: Any, seed: int, is_native: bool) -> tuple[Seen, str]:
    """What is seen first, and the instruction of the user's class."""
    text = _text(env.reset(seed), "reset")
    return Seen(text, read_conversation(env) if is_native else None), str(getattr(env, "instruction", ""))


def step_env(env: Any, answer: str, action: str | None, is_native: bool) -> tuple[EnvStep, Seen]:
    """What the answer led to, and what is seen then. `action` is what action_pattern found in it, None if nothing; one
    with tools looks at the whole answer. The step says in any case whether there was a valid action."""
    if isinstance(env, ToolEnv):
        step = checked_step(env.step_answer(answer, action))
    else:
        step = checked_step(env.step(action or ""))
    valid = step.metrics.get(VALID, 1.0) > 0 and (action is not None or isinstance(env, ToolEnv))
    step = step._replace(metrics={**step.metrics, VALID: float(valid)})
    return step, Seen(step.observation, read_conversation(env) if is_native else None)


def close_env(env: Any) -> None:
    if (close := getattr(env, "close", None)) is not None:
        close()


def checked_step(result: Any) -> EnvStep:
    """What `step` returned, if it is what it should be. Raises EnvCrash."""
    if not isinstance(result, tuple) or len(result) != 5:
        what = f"{len(result)} values" if isinstance(result, tuple) else type(result).__name__
        raise EnvCrash(f"step returned {what}, not (observation, reward, terminated, truncated, metrics)")
    observation, reward, terminated, truncated, metrics = result
    try:
        number = float(reward)
        values = {visible(str(name)): float(value) for name, value in dict(metrics or {}).items()}
    except (TypeError, ValueError, OverflowError) as error:
        raise EnvCrash(f"step returned a reward or metrics that are not numbers: {error}") from None
    if not abs(number) <= LARGEST_REWARD:
        raise EnvCrash(f"step returned the reward {number}")
    return EnvStep(_text(observation, "step"), number, bool(terminated), bool(truncated), values)


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise EnvCrash(f"{where} returned {type(value).__name__} as observation, not text")
    try:
        value.encode()
    except UnicodeEncodeError as error:  # half of a surrogate pair, which no tokenizer takes
        raise EnvCrash(f"{where} returned an observation that is not a text: {error}") from None
    return value


def read_conversation(env: Any) -> Conversation:
    """A copy of the conversation as it is now."""
    found = env.conversation()
    if not isinstance(found, Conversation):
        raise EnvCrash(f"conversation returned {type(found).__name__}, not a Conversation (see env/base.py)")
    return Conversation(tuple(_message(message) for message in found.messages), tuple(found.tools))


def _message(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping) or not isinstance(value.get("role"), str) or not _says_something(value):
        raise EnvCrash(f"conversation holds {value!r}, which is not a message: it needs role and content")
    if isinstance(value.get("content"), str):
        _text(value["content"], "conversation")
    return dict(value)


def _says_something(message: Mapping[str, Any]) -> bool:
    return "content" in message or bool(message.get("tool_calls"))
