"""Ground truths of mathematics, as files hold them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from decimal import Decimal
from fractions import Fraction
from typing import Any, cast

from roll.utils.answers.math_equal import reference


def references(truth: object) -> tuple[str, ...]:
    r"""Return the accepted answers of a ground truth: an answer equal to any of them is right.

    A text may be a worked solution (`reference`); a number is taken as it is written; a list, or a text that is a JSON
    list of texts, holds several. Raises ValueError that says what is wrong with anything else.

    Examples: "6 * 12 = 72\n#### 72" -> ("72",), 1e-07 -> ("1e-07",), ["1/2", 0.5] -> ("1/2", "0.5")
    """
    if hasattr(truth, "tolist") and not isinstance(truth, str):  # numpy's, without importing it
        truth = cast(Any, truth).tolist()
    if isinstance(truth, str) and (several := _json_list(truth)) is not None:
        truth = several
    if isinstance(truth, list | tuple):
        if not truth:
            raise ValueError("is an empty list, so that no answer is right")
        return tuple(_one(entry, "a list with ") for entry in truth)
    return (_one(truth, ""),)


def truth_problem(truth: object) -> str | None:
    """Return the reason why a ground truth is invalid, None if it is valid."""
    try:
        references(truth)
    except ValueError as error:
        return str(error)
    return None


def _one(truth: object, within: str) -> str:
    if hasattr(truth, "item") and not isinstance(truth, str):
        truth = cast(Any, truth).item()
    if truth is None or (isinstance(truth, str) and not truth.strip()):
        raise ValueError(f"is {within}an empty entry" if within else "is empty")
    if isinstance(truth, str):
        return reference(truth)
    if isinstance(truth, bool):
        raise ValueError(f"is {within}{str(truth).lower()}, which no number and no text is")
    if isinstance(truth, Mapping):
        keys = [str(key) for key in truth]
        first = keys[0] if keys else "answer"
        raise ValueError(
            f"is {within}a mapping ({', '.join(keys) or 'without keys'}). Name the entry that is the answer, as in "
            f"data_args.ground_truth: <column>.{first}"
        )
    if not isinstance(truth, int | float | Decimal | Fraction):
        raise ValueError(
            f"is {within}a {type(truth).__name__}. It must be a text, a number, or a list of these, any of them right"
        )
    if not isinstance(truth, int | Fraction) and not math.isfinite(truth):
        raise ValueError(f"is {within}{truth}, which no answer can equal")
    return format(Decimal(truth), "f") if isinstance(truth, int) else str(truth)  # str of an int has a longest one


def _json_list(text: str) -> list[str] | None:
    """Example: '["1/2", "0.5"]' holds two; [1, 2] is an interval or a list of numbers, and stays what it is."""
    if not text.lstrip().startswith('["'):
        return None
    try:
        entries = json.loads(text)
    except ValueError:
        return None
    return entries if isinstance(entries, list) and all(isinstance(entry, str) for entry in entries) else None
