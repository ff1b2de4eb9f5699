"""`roll_math`: questions of mathematics out of a data file, judged as the reward math_rule judges."""

from __future__ import annotations

import functools
import random
from typing import Literal

from roll.envs.base import SUCCESS, VALID, Env, EnvStep
from roll.envs.rows import Mode, Questions, load_rows
from roll.errors import EnvError, MissingPackage
from roll.utils.answers.final_answer import boxed_answer
from roll.utils.answers.math_equal import check_tolerance
from roll.utils.answers.processes import MathProcesses
from roll.utils.answers.truths import references, truth_problem
from roll.utils.imports import is_installed
from roll.utils.thinking import after_thinking


class MathQuestions(Env):
    r"""A question and `tries` answers to it; the right one earns 1 and ends the episode, as the last wrong one does.

    `answer_format` boxed: the answer is the last `\boxed{}` behind the thinking, and without one it is no valid action.
    text: what action_pattern finds is the answer. The file's answers are numbers, LaTeX, or worked solutions that end
    in `\boxed{}` or `#### answer`; any of a list is right. `tolerance` is that of math_rule.
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
        tolerance: float | None = None,
        subset: str | None = None,
    ):
        if tries < 1 or answer_format not in ("boxed", "text"):
            raise EnvError(f"tries: {tries} must be 1 or more, and answer_format: {answer_format} boxed or text")
        self._questions = Questions(dataset_name, split, question_key, answer_key, mode, seed, "roll_math", subset)
        self._is_boxed = answer_format == "boxed"
        self.tries = min(tries, max_steps or tries)
        boxed = r" Put the final answer within \boxed{}." if self._is_boxed else ""
        self.instruction = f"Solve the problem.{boxed}"
        if not is_installed("math_verify"):
            raise MissingPackage("roll_math needs the package math-verify: pip install math-verify")
        try:
            check_tolerance(tolerance)
        except ValueError as error:
            raise EnvError(str(error)) from None
        _check_truths(dataset_name, split, answer_key, subset)
        self._tolerance = tolerance

    def reset(self, seed: int) -> str:
        self.question, answer = self._questions.draw(seed)
        self.answers = references(answer)
        self._left = self.tries
        return self.question

    def step(self, action: str) -> EnvStep:
        self._left -= 1
        text = after_thinking(action).strip()
        answer = (boxed_answer(text) or "").strip() if self._is_boxed else text
        right = bool(answer) and self._is_right(answer)
        if right:
            said = "Right."
        else:
            said = "That is not right." if answer else r"There was no answer within \boxed{}."
            said += f" Tries left: {self._left}."
        metrics = {VALID: float(bool(answer)), SUCCESS: float(right)}
        return EnvStep(said, float(right), right or self._left <= 0, False, metrics)

    def _is_right(self, answer: str) -> bool:
        try:
            return any(_compare(self._tolerance)(truth, answer) for truth in self.answers)
        except ValueError as error:  # a reference that is no mathematics
            raise EnvError(str(error)) from None

    def random_action(self, rng: random.Random) -> str:
        number = str(rng.randint(0, 9))
        return rf"\boxed{{{number}}}" if self._is_boxed else number


@functools.cache
def _compare(tolerance: float | None) -> MathProcesses:
    """No part of an environment, which can be pickled."""
    return MathProcesses(tolerance)


@functools.lru_cache(maxsize=16)
def _check_truths(name: str, split: str, key: str, subset: str | None) -> None:
    """Raises EnvError for the first answer of a file that is none."""
    for place, row in enumerate(load_rows(name, split, subset)):
        if row.get(key) not in (None, "") and (problem := truth_problem(row[key])) is not None:
            raise EnvError(f"answer_key: {key} of row {place} of {name} {problem}")
