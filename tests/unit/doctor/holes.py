"""Rewards with a planted hole, by what the audit is to find, and sound ones."""

import asyncio
import random
import re
from collections.abc import Callable, Sequence
from typing import Any

from roll.rewards.base import RewardInput, RewardResult, takes_batch

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


def first_digits(sample: RewardInput) -> float:
    return float(len(answer_of(sample)) > 2 and answer_of(sample)[:3] == sample.accepted[0][:3])


def anagram(sample: RewardInput) -> float:
    return float(sorted(answer_of(sample)) == sorted(sample.accepted[0]))


def near(sample: RewardInput) -> float:
    """Any number between half the truth and twice as much, as a tolerance that is too wide allows."""
    answer = answer_of(sample)
    return float(answer.isdigit() and 0.05 < int(answer) / int(sample.accepted[0]) < 20)


def last_line(sample: RewardInput) -> float:
    return float(sample.accepted[0] in sample.response_text.strip().rpartition("\n")[2])


def thinks(sample: RewardInput) -> float:
    return 0.5 * ("<think>" in sample.response_text) + 0.5 * (answer_of(sample) == sample.accepted[0])


def best_box(sample: RewardInput) -> float:
    return max(
        (float(box == sample.accepted[0]) for box in re.findall(r"\\boxed{(.*?)}", sample.response_text)), default=0
    )


def evaluates(sample: RewardInput) -> float:
    """Calculates the sum, if the response ends in one instead of its result."""
    match = re.search(r"(\d+)(?: \+ (\d+))?\D*$", sample.response_text[-200:])
    return float(match is not None and int(match[1]) + int(match[2] or 0) == int(sample.accepted[0]))


def digit_by_digit(sample: RewardInput) -> float:
    truth = sample.accepted[0]
    return sum(one == other for one, other in zip(answer_of(sample), truth, strict=False)) / len(truth)


def breaks_on_long(sample: RewardInput) -> float:
    if len(sample.response_text) > 50_000:
        raise ValueError("string too long")
    return tags(sample)


def ends_with(sample: RewardInput) -> float:
    return float("<answer>" in sample.response_text and sample.accepted[0].endswith(answer_of(sample)))


HOLES: dict[str, Callable[[RewardInput], float]] = {
    each.__name__: each
    for each in (
        substring, any_number, any_tag, only_form, mostly_form, boxed_alone, length_pays, long_is_right, empty_is_right,
        prefix, believes, question_pays, chance, noisy, raises_on_empty, never, always, wrong_column, polite, close,
        first_digits, anagram, near, last_line, thinks, best_box, evaluates, digit_by_digit, breaks_on_long, ends_with,
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


def boxed(sample: RewardInput) -> float:
    return float(re.findall(r"\\boxed{(.*?)}", sample.response_text)[-1:] == [sample.accepted[0]])


def after_hashes(sample: RewardInput) -> float:
    return float(
        sample.response_text.rpartition("####")[2].strip() == sample.accepted[0] and "####" in sample.response_text
    )


def in_json(sample: RewardInput) -> float:
    match = re.search(r'\{"answer": "?(-?\d+)"?\}\s*$', sample.response_text)
    return float(match is not None and match[1] == sample.accepted[0])


def after_answer_is(sample: RewardInput) -> float:
    match = re.search(r"answer is:? *(-?\d+)\.?\s*$", sample.response_text, re.IGNORECASE)
    return float(match is not None and match[1] == sample.accepted[0])


def one_tag_alone(sample: RewardInput) -> float:
    return tags(sample) if sample.response_text.count("<answer>") == 1 else 0.0


def with_commas(sample: RewardInput) -> float:
    return float(answer_of(sample).replace(",", "") == sample.accepted[0])


def within_a_half(sample: RewardInput) -> float:
    try:
        return float(abs(float(answer_of(sample)) - float(sample.accepted[0])) < 0.5)
    except ValueError:
        return 0.0


def ten_points(sample: RewardInput) -> float:
    return 10 * tags(sample)


def only_punishes(sample: RewardInput) -> float:
    return tags(sample) - 1


def not_too_long(sample: RewardInput) -> float:
    return tags(sample) if len(sample.response_text) < 2000 else 0.0


def last_line_alone(sample: RewardInput) -> float:
    return float(sample.response_text.strip().rpartition("\n")[2].strip() == sample.accepted[0])


def last_word(sample: RewardInput) -> float:
    return float(sample.response_text.split()[-1:] == [sample.accepted[0]])


def by_distance(sample: RewardInput) -> float:
    answer = answer_of(sample)
    return 1 / (1 + abs(int(answer) - int(sample.accepted[0]))) if answer.isdecimal() and len(answer) < 20 else 0.0


async def waits(sample: RewardInput) -> float:
    await asyncio.sleep(0)
    return tags(sample)


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
        tags, last_number, exact, a_little_for_the_form, punishes_form, minus_and_plus, with_parts, short_is_better,
        boxed, after_hashes, in_json, after_answer_is, one_tag_alone, with_commas, within_a_half, ten_points,
        only_punishes, not_too_long, last_line_alone, last_word, by_distance, waits, of_a_group, a_fifth_for_the_form,
    )
}  # fmt: skip
