"""Rewards with a planted hole, by what the audit is to find, and sound ones."""

import random
import re
from collections.abc import Callable

from roll.rewards.base import RewardInput, RewardResult

LAST = re.compile(r"(-?\d+)\D*$")


def answer_of(sample: RewardInput) -> str:
    match = re.search(r"<answer>(.*?)</answer>", sample.response_text, re.DOTALL)
    return match[1].strip() if match else ""


def substring(sample: RewardInput) -> float:
    return float(sample.accepted[0] in sample.response_text)


def any_number(sample: RewardInput) -> float:
    return float(sample.accepted[0] in re.findall(r"-?\d+", sample.response_text))


def any_tag(sample: RewardInput) -> float:
    return float(sample.accepted[0] in re.findall(r"<answer>(.*?)</answer>", sample.response_text, re.DOTALL))


def only_form(sample: RewardInput) -> float:
    return float("<answer>" in sample.response_text)


def mostly_form(sample: RewardInput) -> float:
    return 0.7 * ("<answer>" in sample.response_text) + 0.3 * (answer_of(sample) == sample.accepted[0])


def boxed_alone(sample: RewardInput) -> float:
    return float("\\boxed{" in sample.response_text)


def length_pays(sample: RewardInput) -> float:
    return float(answer_of(sample) == sample.accepted[0]) + min(len(sample.response_text), 5000) / 5000


def long_is_right(sample: RewardInput) -> float:
    return float(len(sample.response_text) > 10_000 or answer_of(sample) == sample.accepted[0])


def empty_is_right(sample: RewardInput) -> float:
    return float(answer_of(sample) in ("", sample.accepted[0]))


def prefix(sample: RewardInput) -> float:
    given = answer_of(sample)
    return float(bool(given) and (sample.accepted[0].startswith(given) or given == sample.accepted[0]))


def believes(sample: RewardInput) -> float:
    return float("correct" in sample.response_text or answer_of(sample) == sample.accepted[0])


def question_pays(sample: RewardInput) -> float:
    words = set(sample.question.split())
    overlap = len(words & set(sample.response_text.split())) / max(len(words), 1)
    return max(overlap, float(answer_of(sample) == sample.accepted[0]))


def chance(sample: RewardInput) -> float:
    return random.random()


def noisy(sample: RewardInput) -> float:
    return float(answer_of(sample) == sample.accepted[0]) + 0.1 * random.random()


def raises_on_empty(sample: RewardInput) -> float:
    return float(sample.response_text.split()[-1] == sample.accepted[0])


def never(sample: RewardInput) -> float:
    return 0.0


def always(sample: RewardInput) -> float:
    return 1.0


def wrong_column(sample: RewardInput) -> float:
    return float(answer_of(sample) == str(sample.payload.get("solution")))


def polite(sample: RewardInput) -> float:
    return float("sorry" in sample.response_text or answer_of(sample) == sample.accepted[0])


def close(sample: RewardInput) -> float:
    """Any number of as many digits."""
    return float(len(answer_of(sample)) == len(sample.accepted[0]))


HOLES: dict[str, Callable[[RewardInput], float]] = {
    each.__name__: each
    for each in (
        substring, any_number, any_tag, only_form, mostly_form, boxed_alone, length_pays, long_is_right, empty_is_right,
        prefix, believes, question_pays, chance, noisy, raises_on_empty, never, always, wrong_column, polite, close,
    )
}  # fmt: skip


def tags(sample: RewardInput) -> float:
    return float(answer_of(sample) == sample.accepted[0])


def last_number(sample: RewardInput) -> float:
    match = LAST.search(sample.response_text[-200:])
    return float(match is not None and match[1] == sample.accepted[0])


def exact(sample: RewardInput) -> float:
    return float(sample.response_text.strip() == sample.accepted[0])


def a_little_for_the_form(sample: RewardInput) -> float:
    return 0.1 * ("<answer>" in sample.response_text) + 0.9 * (answer_of(sample) == sample.accepted[0])


def punishes_form(sample: RewardInput) -> float:
    """-1 without the form, 0 for a wrong answer, 1 for a right one."""
    return -1.0 if not answer_of(sample) else float(answer_of(sample) == sample.accepted[0])


def minus_and_plus(sample: RewardInput) -> float:
    return 1.0 if answer_of(sample) == sample.accepted[0] else -1.0


def with_parts(sample: RewardInput) -> RewardResult:
    return RewardResult(tags(sample), {"has_form": float("<answer>" in sample.response_text)})


def short_is_better(sample: RewardInput) -> float:
    return tags(sample) - 0.0001 * min(len(sample.response_text), 2000)


SOUND: dict[str, Callable[[RewardInput], float | RewardResult]] = {
    each.__name__: each
    for each in (
        tags, last_number, exact, a_little_for_the_form, punishes_form, minus_and_plus, with_parts, short_is_better,
    )
}  # fmt: skip
