"""The accepted answers of a row: what its ground truth means, for every reward, judge and environment."""

import ast
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any, NamedTuple

GROUND_TRUTH = "ground_truth"  # the reference answer, whatever its column is called
Columns = str | tuple[str, ...]
"""A column, or several of which one is enough."""
ENTRIES = ("ground_truth", "target", "answer", "answers", "value", "text", "number", "spans")
"""The entry of a mapping that is the answer, the first that is not empty; aliases beside it are accepted."""
OPTIONS = ("options", "choices", "endings")
"""Columns with the options of a question, the first that has some."""
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_NUMBER = re.compile(r"\s*\$?(\d+(?:\.\d+)?)(?![\w.,/:])")
OptionsColumn = str | Sequence[str] | Mapping[Any, str] | None
"""Column with the options, or the columns that hold one each, as a list or by their labels."""


class Option(NamedTuple):
    """One option of a question: its label, "A" where the row gives none, its text, and how the row holds it."""

    label: str
    text: str
    held: Any


def accepted_answers(truth: object, options: Sequence[Option] = ()) -> tuple[str, ...]:
    """Return the texts of a ground truth any of which is right.

    It is a text, a number, a list of these, a mapping with one of `ENTRIES`, or the JSON text of such a mapping or of a
    list of texts, which is right itself, too. A whole number beside `options` (those of its row: `options_in`) is the
    index of one, from 0: its label and its text are accepted. If an option is that number, it is the number. A list
    with a 0 or 1 for each option marks the right ones. Raises ValueError that says what is wrong.

    Examples: 5.0 -> ("5", "5.0"), '["Paris", "paris"]' -> ("Paris", "paris", '["Paris", "paris"]'),
    {"value": "UK", "aliases": ["GB"]} -> ("UK", "GB"), 2 with the options red, green and blue -> ("C", "blue")
    """
    marks: Any = None if isinstance(truth, str) else as_data(truth)
    if is_marked := len(options) > 1 and _are_marks(marks, len(options)):
        right = (option for option, mark in zip(options, marks, strict=True) if mark)
        texts = tuple(dict.fromkeys(text for option in right for text in (option.label, option.text)))
    else:
        texts = tuple(dict.fromkeys(text for value in _values(truth) for text in _meant(value, options)))
    if not texts:
        raise ValueError(f"is {'a list of zeros' if is_marked else 'an empty list'}, so that no answer is right")
    return texts


def _are_marks(held: Any, number: int) -> bool:
    is_long = isinstance(held, list | tuple) and len(held) == number
    return is_long and all(isinstance(one, int | float) and one in (0, 1) for one in held)


def truth_problem(
    row: Mapping[str, Any], options_column: OptionsColumn = None, letters: str = LETTERS, may_be_json: bool = True
) -> str | None:
    """Return the problem of a row's `ground_truth`, if any. `may_be_json`: an answer may be the JSON text of a
    mapping."""
    try:
        answers = accepted_answers(row.get("ground_truth"), options_in(row, options_column, letters))
        for data in () if may_be_json else map(as_data, answers):
            if isinstance(data, Mapping):
                raise ValueError(f"is the text of {a_mapping(data)}")
    except ValueError as error:
        return f"its ground truth {error}"
    return None


def as_data(value: Any) -> Any:
    """Return the list or the mapping that a text holds, as JSON or as Python writes it, and what numpy holds as
    Python's; anything else as it is."""
    if hasattr(value, "tolist") and not isinstance(value, str):  # without importing numpy
        return value.tolist()
    if not isinstance(value, str) or value.lstrip()[:1] not in ("{", "["):
        return value
    for read in (json.loads, ast.literal_eval):
        try:
            data = read(value.strip())
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            continue
        return data if isinstance(data, list | dict) else value
    return value


def entry_at(values: Mapping[str, Any], path: str) -> Any:
    """Return the value at a path of names with dots, also through columns that hold a mapping as JSON text. A key that
    contains dots itself comes first. None where nothing is."""
    if path in values or "." not in path:
        return values.get(path)
    names = path.split(".")
    for place in range(len(names) - 1, 0, -1):
        inner = as_data(values.get(".".join(names[:place])))
        if isinstance(inner, Mapping) and (entry := entry_at(inner, ".".join(names[place:]))) is not None:
            return entry
    return None


def options_in(row: Mapping[str, Any], column: OptionsColumn = None, letters: str = LETTERS) -> list[Option]:
    """Return the options of a row's question, from `column`, else from the first of `OPTIONS` that has some: a list, a
    mapping of labels to texts, ARC's mapping of `text` and `label`, a text that labels them ("A. red B. blue"), or JSON
    text of these. `column` may be ["opa", "opb"] or {"1": "answerA", "2": "answerB"}."""
    if isinstance(column, Mapping):
        return list(_options({label: entry_at(row, name) for label, name in column.items()}, letters))
    if column is not None and not isinstance(column, str):
        return list(_options([entry_at(row, name) for name in column], letters))
    for name in OPTIONS if column is None else (column,):
        if options := list(_options(as_data(entry_at(row, name)), letters)):
            return options
    return []


def _options(held: Any, letters: str) -> Iterator[Option]:
    if isinstance(held, str):
        held = _labelled(held, letters)
    if isinstance(held, Mapping) and isinstance(texts := as_data(held.get("text")), list | tuple):
        pairs = zip(as_data(held.get("label")) or letters, texts, strict=False)
    elif isinstance(held, Mapping):
        pairs = held.items() if all(len(str(label).strip()) == 1 for label in held) else ()
    elif isinstance(held, list | tuple) and all(isinstance(one, Mapping) for one in held):
        pairs = [
            (one.get("label") or one.get("key") or letter, next((one[name] for name in ENTRIES if name in one), None))
            for letter, one in zip(letters, held, strict=False)
        ]
    else:
        pairs = zip(letters, held, strict=False) if isinstance(held, list | tuple) else ()
    for label, text in pairs:
        if text is not None and not isinstance(text, Mapping | list | tuple):
            named = str(label).strip().upper()
            yield Option(named, re.sub(rf"(?i)^\s*\(?{re.escape(named)}\s?[.):]\s*", "", str(text)).strip(), text)


def _labelled(text: str, letters: str) -> dict[str, str]:
    """Example: "a ) 38 , b ) 27.6" -> {"A": "38", "B": "27.6"}."""
    places: list[re.Match[str]] = []
    for letter in letters:
        found = re.compile(rf"(?:^|[\s,;])\(?{letter}\s?[.):]\s*", re.I).search(text, places[-1].end() if places else 0)
        if found is None:
            break
        places.append(found)
    ends = [place.start() for place in places[1:]] + [len(text)]
    parts = [text[place.end() : end].strip(" \t\n,;") for place, end in zip(places, ends, strict=False)]
    return dict(zip(letters, parts, strict=False)) if len(parts) > 1 else {}


def _values(truth: object, within: str = "") -> Iterator[str | int | float | Decimal | Fraction]:
    data = as_data(truth)
    truth = truth if isinstance(truth, str) else data
    if isinstance(data, Mapping):
        there = [name for name in ENTRIES if data.get(name) is not None]
        if there:
            name = next((name for name in there if as_data(data[name]) not in ("", [])), there[-1])
            yield from _values(data[name], "an entry with ")
            for name in ("aliases", "normalized_aliases"):
                yield from _values(data[name], "an entry with ") if data.get(name) is not None else ()
            return
        if data is truth:
            raise ValueError(f"is {within}{a_mapping(data)}")
    elif isinstance(data, list | tuple) and (data is truth or all(isinstance(one, str) for one in data)):
        if data and within == "a list with ":
            raise ValueError(
                "is a list with a list. It must be a text, a number, or a list of these, any of them right"
            )
        for one in data:
            yield from _values(one, "a list with ")
        if data is not truth:  # where the answer is a list
            yield _one(truth, within)
        return
    yield _one(truth, within)


def _one(truth: object, within: str) -> str | int | float | Decimal | Fraction:
    if truth is None or (isinstance(truth, str) and not truth.strip()):
        raise ValueError(f"is {within}an empty entry" if within else "is empty")
    if isinstance(truth, str):
        return truth.strip()
    if isinstance(truth, bool):
        raise ValueError(f"is {within}{str(truth).lower()}. Write the text that an answer holds, such as yes or true")
    if not isinstance(truth, int | float | Decimal | Fraction):
        raise ValueError(
            f"is {within}a {type(truth).__name__}. It must be a text, a number, or a list of these, any of them right"
        )
    if not isinstance(truth, int | Fraction) and not math.isfinite(truth):
        raise ValueError(f"is {within}{truth}, which no answer can equal")
    return truth


def a_mapping(data: Mapping[Any, Any]) -> str:
    """Name a mapping that is no answer, and what to do."""
    keys = [str(key) for key in data]
    return (
        f"a mapping ({', '.join(keys) or 'without keys'}). Name the entry that is the answer, as in "
        f"data_args.ground_truth: <column>.{keys[0] if keys else 'answer'}"
    )


def _meant(value: str | int | float | Decimal | Fraction, options: Sequence[Option]) -> tuple[str, ...]:
    if isinstance(value, str):
        texts: tuple[str, ...] = (value,)
    elif isinstance(value, float | Decimal) and abs(value) <= 1e22 and value % 1 == 0:  # floats are exact until there
        texts = (str(int(value)), str(value))
    else:  # str of an int has a longest one
        texts = (format(Decimal(value), "f") if isinstance(value, int) else str(value),)
    if not options or not texts[0].isdecimal() or any(option.label == texts[0] for option in options):
        return texts
    if any(option.held == value for option in options) or (isinstance(value, str) and _is_read(value, options)):
        return texts
    place = int(texts[0]) if len(texts[0]) < 3 else len(options)
    return (options[place].label, options[place].text) if place < len(options) else texts


def _is_read(text: str, options: Sequence[Option]) -> bool:
    """Tell whether one of the options begins with this number, as `2 km` does with 2."""
    return any((number := _NUMBER.match(option.text)) and float(number[1]) == float(text) for option in options)
