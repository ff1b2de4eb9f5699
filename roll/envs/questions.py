"""`roll_math`: questions of mathematics out of a data file, judged as the reward math_rule judges."""

import functools
import random
import re
import string
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from roll.datasets.loader import ENDINGS, DataFile, Row
from roll.datasets.media import check_text_alone
from roll.datasets.messages import are_messages, messages_in
from roll.datasets.sources import is_data_set_id, load_hub_set
from roll.envs.base import SUCCESS, VALID, Env, EnvStep
from roll.errors import ConfigError, EnvError, MissingPackage
from roll.utils.answers.final_answer import boxed_answer, last_boxed
from roll.utils.answers.math_equal import MathEqual, check_tolerance, reference
from roll.utils.files import path_info
from roll.utils.imports import is_installed
from roll.utils.thinking import after_thinking
from roll.utils.truths import accepted_answers, entry_at, options_in, truth_problem

# Questions out of a data file, one per episode.

Mode = Literal["train", "val"]


@functools.lru_cache(maxsize=16)
def load_rows(name: str, split: str = "train", subset: str | None = None) -> Sequence[Mapping[str, Any]]:
    """The rows of a file, or of a data set of the Hugging Face hub; read once per process. Raises EnvError."""
    path = path_info(name).path
    form = ENDINGS.get(path.suffix.lower())
    try:
        if not path_info(name).is_file:
            if form is not None or not is_data_set_id(name):
                kinds = ", ".join(ENDINGS)
                raise EnvError(f"{name} does not exist: name a {kinds} file, or a data set of the Hugging Face hub")
            return load_hub_set(name, subset, split)
        if form is None:
            raise EnvError(f"{name} does not end in {', '.join(ENDINGS)}")
        rows = list(DataFile(path, form, "the file").rows())
    except ConfigError as error:
        raise EnvError(str(error)) from error
    if not rows:
        raise EnvError(f"{name} has no rows")
    return [dict(row.values) for row in rows]


class Questions:
    """The questions of a data set. `mode` train draws one by the seed; val takes them in turn, so that seeds one after
    the other ask each of them once."""

    def __init__(
        self,
        dataset_name: str,
        split: str,
        question_key: str,
        answer_key: str,
        mode: Mode,
        seed: int,
        owner: str,
        subset: str | None = None,
    ):
        if mode not in ("train", "val"):
            raise EnvError(f"mode is {mode!r}, not train or val")
        self._name, self._keys = dataset_name, (question_key, answer_key)
        self._file = (dataset_name, split, subset)
        self._mode, self._seed, self._owner = mode, seed, owner
        _check_truths(*self._file, answer_key)
        self._row(0)

    def draw(self, env_seed: int) -> tuple[str, tuple[str, ...], Mapping[str, Any]]:
        """(question, the answers that it accepts, its whole row)."""
        count = len(load_rows(*self._file))
        if self._mode == "val":
            return self._row(env_seed % count)
        return self._row(random.Random(f"{self._owner} {self._seed} {env_seed}").randrange(count))

    def _row(self, place: int) -> tuple[str, tuple[str, ...], Mapping[str, Any]]:
        """Raises EnvError that names a column which is not there."""
        row = Row(self._name, place, load_rows(*self._file)[place])
        for what, key in zip(("question_key", "answer_key"), self._keys, strict=True):
            value = row.value(key)
            if value is None or (isinstance(value, str) and not value):
                raise EnvError(f"{what}: row {place} of {self._name} has no {key}; it has {', '.join(row.values)}")
        question, answer = map(row.value, self._keys)
        return _question(row, self._keys[0], question), accepted_answers(answer, options_in(row.values)), row.values


def _question(row: Row, key: str, value: Any) -> str:
    """A text, or what a conversation of one message says, behind its system message. Raises EnvError for others, and
    for pictures."""
    try:
        check_text_alone(row)
        if are_messages(value):
            messages = messages_in(value, row, key, "question_key")
            before = messages[:-1] if messages[0]["role"] == "system" and len(messages) == 2 else []
            if len(messages) > 1 + len(before):
                raise ConfigError(
                    f"{row.where}: question_key: {key} holds {len(messages)} messages; it may hold one question, and a "
                    "system message before it"
                )
            return "\n\n".join(str(message["content"]) for message in messages)
    except ConfigError as error:
        raise EnvError(str(error)) from error
    if isinstance(value, Mapping | list | tuple):
        raise EnvError(f"{row.where}: question_key: {key} holds a {type(value).__name__}, but a question is a text")
    return str(value)


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
        self._tolerance = tolerance

    def reset(self, seed: int) -> str:
        self.question, answers, self.task_row = self._questions.draw(seed)
        self.answers = tuple(map(reference, answers))
        self._tries_left = self.tries
        return self.question

    def step(self, action: str) -> EnvStep:
        self._tries_left -= 1
        text = after_thinking(action).strip()
        answer = (boxed_answer(text) or "").strip() if self._is_boxed else text
        right = bool(answer) and self._is_right(answer)
        if right:
            said = "Right."
        else:
            said = "That is not right." if answer else r"There was no answer within \boxed{}."
            said += f" Tries left: {self._tries_left}."
        metrics = {VALID: float(bool(answer)), SUCCESS: float(right)}
        return EnvStep(said, float(right), right or self._tries_left <= 0, False, metrics)

    def _is_right(self, answer: str) -> bool:
        try:
            with _COMPARING:
                return any(_compare(self._tolerance)(truth, answer) for truth in self.answers)
        except ValueError as error:  # a reference that is no mathematics
            raise EnvError(str(error)) from None

    def random_action(self, rng: random.Random) -> str:
        number = str(rng.randint(0, 9))
        return rf"\boxed{{{number}}}" if self._is_boxed else number


_COMPARING = threading.Lock()  # math-verify's parser is not made for several threads


@functools.cache
def _compare(tolerance: float | None) -> MathEqual:
    """No part of an environment, which can be pickled."""
    return MathEqual(tolerance)


@functools.lru_cache(maxsize=16)
def _check_truths(name: str, split: str, subset: str | None, key: str) -> None:
    for place, row in enumerate(load_rows(name, split, subset)):
        truth = entry_at(row, key)
        if truth not in (None, "") and (problem := truth_problem({**row, "ground_truth": truth})) is not None:
            raise EnvError(f"answer_key: {key} of row {place} of {name}: {problem}")


# `roll_qa`: questions out of a data file, whose answers are compared as texts.

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
        self.question, self.answers, self.task_row = self._questions.draw(seed)
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
    best, words = 0.0, Counter(normal(answer).split())
    for truth in truths:
        wanted = Counter(normal(truth).split())
        if shared := (words & wanted).total():
            best = max(best, 2 * shared / (words.total() + wanted.total()))
    return best
