"""Rewards with a planted hole, by what the audit is to find, and sound ones."""

import random
import re
from collections.abc import Callable, Sequence
from typing import Any

from roll.rewards.base import RewardInput, RewardResult, takes_batch


def answer_of(sample: RewardInput) -> str:
    match = re.search(r"<answer>(.*?)</answer>", sample.response_text, re.DOTALL)
    return match[1].strip() if match else ""


def any_tag(sample: RewardInput) -> float:
    return float(sample.accepted[0] in re.findall(r"<answer>(.*?)</answer>", sample.response_text, re.DOTALL))


def only_form(sample: RewardInput) -> float:
    return float("<answer>" in sample.response_text)


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


def raises_on_empty(sample: RewardInput) -> float:
    return float(sample.response_text.split()[-1] == sample.accepted[0])


def never(sample: RewardInput) -> float:
    return 0.0


def polite(sample: RewardInput) -> float:
    return float("sorry" in sample.response_text or answer_of(sample) == sample.accepted[0])


def close(sample: RewardInput) -> float:
    """Any number of as many digits."""
    return float(len(answer_of(sample)) == len(sample.accepted[0]))


def anagram(sample: RewardInput) -> float:
    return float(sorted(answer_of(sample)) == sorted(sample.accepted[0]))


def thinks(sample: RewardInput) -> float:
    return 0.5 * ("<think>" in sample.response_text) + 0.5 * (answer_of(sample) == sample.accepted[0])


def breaks_on_long(sample: RewardInput) -> float:
    if len(sample.response_text) > 50_000:
        raise ValueError("string too long")
    return tags(sample)


HOLES: dict[str, Callable[[RewardInput], float]] = {
    each.__name__: each
    for each in (
        any_tag, only_form, length_pays, long_is_right, empty_is_right, prefix, believes, question_pays, chance,
        raises_on_empty, never, polite, close, anagram, thinks, breaks_on_long,
    )
}  # fmt: skip


def tags(sample: RewardInput) -> float:
    return float(answer_of(sample) == sample.accepted[0])


def punishes_form(sample: RewardInput) -> float:
    """-1 without the form, 0 for a wrong answer, 1 for a right one."""
    return -1.0 if not answer_of(sample) else float(answer_of(sample) == sample.accepted[0])


def minus_and_plus(sample: RewardInput) -> float:
    return 1.0 if answer_of(sample) == sample.accepted[0] else -1.0


def with_parts(sample: RewardInput) -> RewardResult:
    return RewardResult(tags(sample), {"has_form": float("<answer>" in sample.response_text)})


def short_is_better(sample: RewardInput) -> float:
    return tags(sample) - 0.0001 * min(len(sample.response_text), 2000)


def in_json(sample: RewardInput) -> float:
    match = re.search(r'\{"answer": "?(-?\d+)"?\}\s*$', sample.response_text)
    return float(match is not None and match[1] == sample.accepted[0])


def by_distance(sample: RewardInput) -> float:
    answer = answer_of(sample)
    return 1 / (1 + abs(int(answer) - int(sample.accepted[0]))) if answer.isdecimal() and len(answer) < 20 else 0.0


@takes_batch
def of_a_group(samples: Sequence[RewardInput]) -> list[float]:
    return [tags(sample) for sample in samples]


def a_fifth_for_the_form(sample: RewardInput) -> float:
    return 0.8 * tags(sample) + 0.2 * bool(answer_of(sample))


def compute_score(data_source: str, solution_str: str, ground_truth: str, extra_info: object) -> float:
    return float(bool(re.search(rf"<answer>\s*{ground_truth}\s*</answer>\s*$", solution_str)))


SOUND: dict[str, Callable[..., Any]] = {
    each.__name__: each
    for each in (
        tags, punishes_form, minus_and_plus, with_parts, short_is_better, in_json, by_distance, of_a_group,
        a_fifth_for_the_form,
    )
}  # fmt: skip
