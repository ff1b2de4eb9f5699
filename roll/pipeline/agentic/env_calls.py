"""An environment in a thread of its own: its calls may take long, hang or crash without holding up anybody."""

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from roll.configs.base import LARGEST_REWARD
from roll.configs.tables.sight import PictureSizes
from roll.envs.base import VALID, Conversation, EnvStep
from roll.envs.tools.base import ToolEnv, ToolError
from roll.errors import EnvError
from roll.pipeline.agentic.observations import EnvCrash, Observation, Part, checked_text, parts_of
from roll.utils.background import BackgroundTasks
from roll.utils.imports import traced
from roll.utils.text import visible

T = TypeVar("T")
_CLOSE_TIMEOUT_S = 60.0


class EnvHang(EnvError):
    """The environment, or the whole episode, took longer than it may."""


class EnvThread:
    """Runs calls in order. After a hang the thread is given up: it cannot be stopped from outside.

    A turnstile is held from the moment a call may start until it has ended or is given up, also when nobody waits for
    it any more, so that no more calls run at once than it lets through.
    """

    def __init__(self, name: str, turnstile: asyncio.Semaphore | None = None):
        self.is_hung = False
        self.was_left_busy = False
        """A call was running when the thread was closed."""
        self._is_busy = False
        self._turnstile = turnstile
        self._closing = BackgroundTasks()
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        threading.Thread(target=self._serve, name=name, daemon=True).start()

    async def call(self, what: str, function: Callable[..., T], *arguments: Any, timeout_s: float | None) -> T:
        """Raises EnvCrash with the cause, EnvHang, or a tool's ToolError. `timeout_s` begins when a call may start."""
        held = [] if self._turnstile is None else [self._turnstile]
        for turnstile in held:
            await turnstile.acquire()

        def give_back() -> None:
            while held:
                held.pop().release()

        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def settle(result: Any, error: BaseException | None) -> None:
            give_back()
            if future.done():
                return
            if error is None:
                future.set_result(result)
            elif isinstance(error, EnvCrash | ToolError):  # `function` says itself what is wrong
                future.set_exception(error)
            else:
                future.set_exception(EnvCrash(f"{what} raised {traced(error)}"))

        def work() -> None:
            try:
                outcome: tuple[Any, BaseException | None] = function(*arguments), None
            except BaseException as error:
                outcome = None, error
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(settle, *outcome)

        self._work.put(work)
        try:
            return await asyncio.wait_for(future, timeout_s)
        except TimeoutError:
            self.is_hung = True
            give_back()
            raise EnvHang(f"{what} took longer than {timeout_s:g} s") from None
        except asyncio.CancelledError:
            loop.call_later(min(timeout_s or _CLOSE_TIMEOUT_S, _CLOSE_TIMEOUT_S), give_back)
            raise

    def close(self, last: Callable[[], None] | None = None) -> None:
        """Ends the thread after `last`; does not wait."""
        self.was_left_busy = self._is_busy
        if last is not None and self._turnstile is not None and not self.is_hung:
            self._closing.start(self._close_in_turn(last))
            return
        self._work.put(last or (lambda: None))
        self._work.put(None)

    async def _close_in_turn(self, last: Callable[[], None]) -> None:
        try:
            async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                while self._is_busy:  # a call that nobody waits for has its turn already: one is enough
                    await asyncio.sleep(0.05)
            with contextlib.suppress(EnvCrash, EnvHang):
                await self.call("close", last, timeout_s=_CLOSE_TIMEOUT_S)
        except TimeoutError:  # it has lost its turn: what is left of it happens whenever it ends
            self._work.put(last)
        self._work.put(None)

    def _serve(self) -> None:
        while (work := self._work.get()) is not None:
            self._is_busy = True
            with contextlib.suppress(BaseException):  # of a close
                work()
            self._is_busy = False


# What the env manager asks of a user's class, and what it takes back. All of it happens in the environment's thread, so
# that whatever the class raises is its own failure.


@dataclass(frozen=True)
class EnvView:
    """How the env manager looks at an environment: `is_native` reads the conversation that it keeps; `sizes` are those
    of the pictures that the model takes, None where it is shown text alone. `where`: names the episode in messages."""

    is_native: bool = False
    sizes: PictureSizes | None = None
    where: str = ""

    def observation(self, env: Any, parts: tuple[Part, ...]) -> Observation:
        if not self.is_native:
            return Observation(parts)
        told = env.conversation()
        if not isinstance(told, Conversation):
            raise EnvCrash(f"conversation returned {type(told).__name__}, not a Conversation (see envs/base.py)")
        return Observation(parts, Conversation(tuple(map(_message, told.messages)), tuple(told.tools)))


def reset_env(env: Any, seed: int, view: EnvView) -> tuple[Observation, str]:
    """Reset the environment; returns the first observation, and the instruction of the user's class."""
    parts = parts_of(env.reset(seed), "reset", view.sizes, view.where)
    return view.observation(env, parts), str(getattr(env, "instruction", ""))


def step_env(env: Any, answer: str, action: str | None, view: EnvView) -> tuple[EnvStep, Observation]:
    """Take a step; returns its result and the observation that follows. `action` is what action_pattern found in it,
    None if nothing; one with tools looks at the whole answer. The step says in any case whether there was a valid
    action."""
    if isinstance(env, ToolEnv):
        step = checked_step(env.step_answer(answer, action))
    else:
        step = checked_step(env.step(action or ""))
    valid = step.metrics.get(VALID, 1.0) > 0 and (action is not None or isinstance(env, ToolEnv))
    step = step._replace(metrics={**step.metrics, VALID: float(valid)})
    return step, view.observation(env, parts_of(step.observation, "step", view.sizes, view.where))


def close_env(env: Any) -> None:
    if (close := getattr(env, "close", None)) is not None:
        close()


def checked_step(result: Any) -> EnvStep:
    """Check the value that `step` returned, but for its observation. Raises EnvCrash."""
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
    return EnvStep(observation, number, bool(terminated), bool(truncated), values)


def _message(value: Any) -> Mapping[str, Any]:
    is_message = isinstance(value, Mapping) and isinstance(value.get("role"), str)
    if not is_message or not ("content" in value or value.get("tool_calls")):
        raise EnvCrash(f"conversation holds {value!r}, which is not a message: it needs role and content")
    if isinstance(value.get("content"), str):
        checked_text(value["content"], "conversation")
    return dict(value)
