"""Rewards and rows with the faults that health_proof.yaml plants."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from typing import Any

from roll.rewards.base import RewardInput

Row = dict[str, Any]


def exact(sample: RewardInput) -> float:
    """Return 1 for the sorted digits, as the example's own reward does."""
    answers = re.findall("<answer>(.*)</answer>", sample.response_text)
    return float(bool(answers) and answers[-1] == str(sample.ground_truth))


def length(sample: RewardInput) -> float:
    return 0.2 * len(sample.response_text)


def coin(sample: RewardInput, pattern: str = "") -> float:
    return float(random.random() < 0.5)


def minus(sample: RewardInput, pattern: str = "") -> float:
    return -exact(sample)


def half(sample: RewardInput, pattern: str = "") -> float:
    return 0.5


def divides(sample: RewardInput, pattern: str = "") -> float:
    """Return the mean over the answers of a response, as numpy does: NaN if there is none."""
    answers = re.findall("<answer>(.*)</answer>", sample.response_text)
    return sum(answer == str(sample.ground_truth) for answer in answers) / len(answers) if answers else float("nan")


def tags(sample: RewardInput, pattern: str = "") -> float:
    return float("<answer>" in sample.response_text)


def raises(sample: RewardInput, pattern: str = "") -> float:
    """Return the right score where the first digit is odd; a table lacks the others."""
    return {str(digit): exact(sample) for digit in range(1, 10, 2)}[str(sample.payload["prompt"])[0]]


def shuffled(rows: Sequence[Row]) -> list[Row]:
    truths = [row["ground_truth"] for row in rows]
    random.Random(0).shuffle(truths)
    return [{**row, "ground_truth": truth} for row, truth in zip(rows, truths, strict=True)]


def eight(rows: Sequence[Row]) -> list[Row]:
    return list(rows[:8])


def repeated_digits(rows: Sequence[Row]) -> list[Row]:
    return [{**rows[0], "prompt": str(digit) * 4, "ground_truth": str(digit) * 4} for digit in range(10)]


def swapped(rows: Sequence[Row]) -> list[Row]:
    return [{**row, "chosen": row["rejected"], "rejected": row["chosen"]} for row in rows]


def one_truth(rows: Sequence[Row]) -> list[Row]:
    return [{**row, "ground_truth": rows[0]["ground_truth"]} for row in rows]


def half_shuffled(rows: Sequence[Row]) -> list[Row]:
    return [*shuffled(rows[::2]), *rows[1::2]]


def half_swapped(rows: Sequence[Row]) -> list[Row]:
    return [*swapped(rows[::2]), *rows[1::2]]


def ten_digits(rows: Sequence[Row]) -> list[Row]:
    prompts = ["".join(random.Random(place).choices("0123456789", k=10)) for place in range(len(rows))]
    return [
        {**row, "prompt": prompt, "ground_truth": "".join(sorted(prompt))}
        for row, prompt in zip(rows, prompts, strict=True)
    ]


def first_128(rows: Sequence[Row]) -> list[Row]:
    return list(rows[:128])


def first_512(rows: Sequence[Row]) -> list[Row]:
    return list(rows[:512])
