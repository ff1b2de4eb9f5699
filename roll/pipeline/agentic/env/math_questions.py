"""`roll_math`: questions of mathematics out of a data file, judged as the reward math_rule judges."""

from __future__ import annotations

import functools
import random
import threading
from typing import Literal

from roll.errors import EnvError
from roll.pipeline.agentic.env.base import SUCCESS, VALID, Env, EnvStep
from roll.pipeline.agentic.env.rows import Mode, Questions
from roll.utils.answers import after_thinking, last_boxed
from roll.utils.math_equal import MathEqual, reference
from roll.utils.time_limit import TimeLimitReached, call_within

_JUDGE_LIMIT_S = 60.0
_LOCK = threading.Lock()  # math-verify's parser is not made for several threads


class MathQuestions(Env):
    r"""A question and `tries` answers to it; the right one earns 1 and ends the episode, as the last wrong one does.

    `answer_format` boxed: the answer is the last `\boxed{}` behind the thinking, and without one it is no valid action.
    text: what action_pattern finds is the answer. The file's answers are numbers, LaTeX, or worked solutions that end
    in `\boxed{}` or `#### answer`.
    """

    reward_range = (0.0, 1.0)

    def __init__(
        self,
        dataset_name: str,
        split: str = "train",
        question_key: str = "problem",
        answer_key: str = "answer",
        mode: Mode = "train",
        seed: int = 0,
        tries: int = 1,
        answer_format: Literal["boxed", "text"] = "boxed",
        max_steps: int | None = None,
    ):
        if tries < 1 or answer_format not in ("boxed", "text"):
            raise EnvError(f"tries: {tries} must be 1 or more, and answer_format: {answer_format} boxed or text")
        self._questions = Questions(dataset_name, split, question_key, answer_key, mode, seed, "roll_math")
        self._is_boxed = answer_format == "boxed"
        self.tries = min(tries, max_steps or tries)
        boxed = r" Put the final answer within \boxed{}." if self._is_boxed else ""
        self.instruction = f"Solve the problem.{boxed}"
        _math_equal()

    def reset(self, seed: int) -> str:
        self.question, answer = self._questions.draw(seed)
        self.answer = reference(str(answer))
        self._left = self.tries
        return self.question

    def step(self, action: str) -> EnvStep:
        self._left -= 1
        text = after_thinking(action).strip()
        answer = (last_boxed(text) or "").strip() if self._is_boxed else text
        right = bool(answer) and _judge(self.answer, answer)
        if right:
            said = "Right."
        else:
            said = "That is not right." if answer else r"There was no answer within \boxed{}."
            said += f" Tries left: {self._left}."
        metrics = {VALID: float(bool(answer)), SUCCESS: float(right)}
        return EnvStep(said, float(right), right or self._left <= 0, False, metrics)

    def random_action(self, rng: random.Random) -> str:
        number = str(rng.randint(0, 9))
        return rf"\boxed{{{number}}}" if self._is_boxed else number


@functools.cache
def _math_equal() -> MathEqual:
    return MathEqual()


def _judge(truth: str, answer: str) -> bool:
    """Raises EnvError for a reference that is no mathematics, or a comparison without end."""

    def compare() -> bool:
        with _LOCK:
            return _math_equal()(truth, answer)

    try:
        return call_within(_JUDGE_LIMIT_S, compare)
    except TimeLimitReached:
        raise EnvError(f"comparing {answer[:80]!r} with {truth[:80]!r} took over {_JUDGE_LIMIT_S:g} s") from None
    except ValueError as error:
        raise EnvError(str(error)) from None
