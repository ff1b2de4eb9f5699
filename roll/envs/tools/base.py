"""Any text environment with tools: an answer that calls one gets its result, and does not act."""

import random
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from roll.envs.base import SUCCESS, VALID, Env, EnvStep
from roll.envs.config import ToolWrapperArgs
from roll.errors import EnvError, describe

# What a tool is: something that an answer can call by name, and whose result is the next thing that is seen.


class ToolError(Exception):
    """A call that came to nothing; the policy is told the text."""


@contextmanager
def tool_errors() -> Iterator[None]:
    """Turn whatever a call of a tool raises into a ToolError, which the policy reads: it chose the arguments. Only an
    EnvError passes, by which a tool says that the environment is broken: the attempt fails."""
    try:
        yield
    except (EnvError, ToolError):
        raise
    except (Exception, SystemExit) as error:
        raise ToolError(describe(error)) from None


class Tool(ABC):
    """One object per episode. `<name>what to do</name>` in an answer calls it; `find` may know other forms.

    `run` may wait (a server, a sandbox). What it raises is told to the policy, but an EnvError fails the attempt.
    """

    name: str
    instruction: str
    """How it is called and what it gives, for the prompt."""
    example: str = ""
    """Example arguments of a call, for checks."""

    def find(self, answer: str) -> tuple[int, str] | None:
        """Position and text of the first call; None if there is no call."""
        return first_between(answer, self.name)

    def begin(self, row: Mapping[str, Any]) -> None:
        """Takes note of the row of the data file that an episode begins with; empty where the environment has none."""

    @abstractmethod
    def run(self, call: str) -> str:
        """The result, as the policy sees it."""


def first_between(answer: str, tag: str) -> tuple[int, str] | None:
    """Example: ("so <calc>1 + 1</calc>", "calc") -> (3, "1 + 1")."""
    match = re.search(rf"<{re.escape(tag)}>(.*?)</{re.escape(tag)}>", answer, re.DOTALL)
    return None if match is None else (match.start(), match[1].strip())


def first_call(tools: Sequence[Tool], answer: str) -> tuple[Tool, str] | None:
    """The earliest call in an answer: what stands behind it was written without its result."""
    calls = [(*call, tool) for tool in tools if (call := tool.find(answer)) is not None]
    if not calls:
        return None
    _, call, tool = min(calls, key=lambda one: one[0])
    return tool, call


USED_UP = "No tool can be used any more: give your answer."


class ToolEnv(Env):
    """The first observation ends in how the tools are called. The result of a call is what is seen next, between
    `<tool_response>` tags; the environment does not notice, its steps go on with the next action."""

    def __init__(self, env: Env, tools: Sequence[Tool], args: ToolWrapperArgs):
        self._env, self._tools, self._args = env, tools, args
        self.instruction = getattr(env, "instruction", "")
        self._uses = 0
        low, high = getattr(env, "reward_range", Env.reward_range)
        least, most = (f(self._reward(True), self._reward(False), 0.0) for f in (min, max))
        uses = float("inf") if args.max_tool_uses is None else args.max_tool_uses
        self.reward_range = (low + (uses * least if least else 0.0), high + (uses * most if most else 0.0))

    def reset(self, seed: int) -> str:
        self._uses = 0
        instructions = "\n".join(tool.instruction for tool in self._tools)
        observation = self._env.reset(seed)
        row = getattr(self._env, "task_row", None)
        for tool in self._tools:
            tool.begin(row if isinstance(row, Mapping) else {})
        return f"{observation}\n{instructions}"

    def step(self, action: str) -> EnvStep:
        return self.step_answer(action, action)

    def step_answer(self, answer: str, action: str | None) -> EnvStep:
        """`action` is what action_pattern found in the answer, None if nothing."""
        most = self._args.max_tool_uses
        call = None if most is not None and self._uses >= most else first_call(self._tools, answer)
        if call is None:
            step = self._env.step(action or "")
            if isinstance(step, tuple) and len(step) == 5:  # else the env manager says what is wrong with it
                valid = action is not None and step[4].get(VALID, 1.0) > 0
                step = EnvStep(*step[:4], {**step[4], VALID: float(valid), "tool_call": 0.0})
            return step
        self._uses += 1
        tool, said = call
        failed = 0.0
        try:
            with tool_errors():
                result = tool.run(said)
        except ToolError as error:
            failed, result = 1.0, f"Error: {error}"
        if self._uses == most:
            result += f"\n{USED_UP}"
        metrics = {VALID: 1.0, SUCCESS: 0.0, "tool_call": 1.0, "tool_error": failed}
        return EnvStep(f"<tool_response>\n{result}\n</tool_response>", self._reward(not failed), False, False, metrics)

    def random_action(self, rng: random.Random) -> str:
        tool = rng.choice(self._tools) if self._tools and rng.random() < 0.3 else None
        if tool is None:
            return self._env.random_action(rng)
        return f"<{tool.name}>{tool.example}</{tool.name}>"

    def close(self) -> None:
        if (close := getattr(self._env, "close", None)) is not None:
            close()

    def _reward(self, worked: bool) -> float:
        args = self._args
        return args.tool_reward + (args.tool_success_reward if worked else args.tool_execute_error_reward)
