"""`roll_qa`: questions out of a data file, whose answers are compared as texts."""

from __future__ import annotations

import random
import re
import string
from collections import Counter
from collections.abc import Sequence
from typing import Literal

from roll.envs.base import SUCCESS, VALID, Env, EnvStep
from roll.envs.rows import Mode, Questions
from roll.errors import EnvError
from roll.utils.answers.final_answer import last_boxed
from roll.utils.thinking import after_thinking

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


class QaQuestions(Env):
    r"""A question and one answer to it, which ends the episode. An answer is right when it is one of the file's (a text
    or a list) but for case, punctuation, articles and space, as in SQuAD. It earns 1 then; with `reward: f1` what it
    shares with the best of them, as the F1 of their words.

    With `extract_boxed` the answer is the last `\boxed{}`, else what action_pattern finds: between the last
    `<answer>` tags, if it is not set.
    """

    reward_range = (0.0, 1.0)

    def __init__(
        self,
        dataset_name: str,
        split: str = "train",
        question_key: str = "question",
        answer_key: str = "answer",
        mode: Mode = "train",
        seed: int = 0,
        reward: Literal["exact_match", "f1"] = "exact_match",
        extract_boxed: bool = False,
        max_steps: int | None = None,
        subset: str | None = None,
    ):
        if reward not in ("exact_match", "f1"):
            raise EnvError(f"reward: {reward} must be exact_match or f1")
        self._questions = Questions(dataset_name, split, question_key, answer_key, mode, seed, "roll_qa", subset)
        self._reward, self._is_boxed = reward, extract_boxed
        form = r"\boxed{answer}" if extract_boxed else "<answer>answer</answer>"
        self.instruction = f"Answer the question in a few words, as {form}."

    def reset(self, seed: int) -> str:
        self.question, answer = self._questions.draw(seed)
        listed = isinstance(answer, Sequence) and not isinstance(answer, str)
        self.answers = [str(one) for one in answer] if listed else [str(answer)]
        return self.question

    def step(self, action: str) -> EnvStep:
        answer = (last_boxed(after_thinking(action)) or "") if self._is_boxed else action
        exact = exact_match(answer, self.answers)
        metrics = {VALID: float(bool(answer.strip())), SUCCESS: exact, "f1": f1(answer, self.answers)}
        reward = exact if self._reward == "exact_match" else metrics["f1"]
        return EnvStep("Right." if exact else "That is not right.", reward, True, False, metrics)

    def random_action(self, rng: random.Random) -> str:
        word = rng.choice(self.question.split() or ["no"])
        return rf"\boxed{{{word}}}" if self._is_boxed else word


def normal(text: str) -> str:
    """Example: "The Eiffel  Tower!" -> "eiffel tower"."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def exact_match(answer: str, truths: Sequence[str]) -> float:
    return float(bool(answer.strip()) and normal(answer) in {normal(truth) for truth in truths})


def f1(answer: str, truths: Sequence[str]) -> float:
    """The best of the F1 of shared words. Example: "red house" and "big red house": 2/2 and 2/3 give .8."""
    return max((_f1(normal(answer).split(), normal(truth).split()) for truth in truths), default=0.0)


def _f1(answer: list[str], truth: list[str]) -> float:
    shared = (Counter(answer) & Counter(truth)).total()
    return 2 * shared / (len(answer) + len(truth)) if shared else 0.0
