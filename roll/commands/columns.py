"""Which columns of a file hold prompts, reference answers and tags."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from roll.configs.sections.data import DataArgs
from roll.datasets.loader import DataFile
from roll.datasets.sources import data_sources
from roll.errors import ConfigError

PROMPTS = ("prompt", "question", "problem", "instruction", "query", "input")
MESSAGES = ("messages", "conversations", "prompt")
TRUTHS = ("ground_truth", "answer", "solution", "target", "label", "reference", "reward_model.ground_truth")


@dataclass(frozen=True)
class Columns:
    """Names of columns; empty: none, or as they are called by default. `tags`: those of all rows. `names`:
    all columns of the first row, none where the rows are not on this machine."""

    prompt: str = ""
    messages: str = ""
    truth: str = ""
    tags: tuple[str, ...] = ()
    names: tuple[str, ...] = field(default=(), compare=False)


def columns_of(data: str, prompt: str = "", truth: str = "") -> Columns:
    """The columns of a file of this machine, by the names that are usual; of what is elsewhere nothing is known.
    `prompt` and `truth` are given. Raises ConfigError for a file that is missing, empty or cannot be read, and where no
    column is known to hold the prompt."""
    sources, problems = data_sources(DataArgs(file_name=(data,)), "--data", reach=False)
    if problems:
        raise ConfigError(*(f"{problem.replace('--data.file_name', '--data')}." for problem in problems))
    files = [source for source in sources if isinstance(source, DataFile)]
    if not files:
        return Columns(prompt, "", truth)
    rows = (row.values for file in files for row in file.rows())
    first = next(rows, None)
    if first is None:
        raise ConfigError(f"--data: {data} holds no row.")
    told = (row.get("tag") for row in chain([first], rows))
    tags, names = tuple(dict.fromkeys(str(tag) for tag in told if tag is not None)), tuple(map(str, first))
    for given, option in ((prompt, "--prompt"), (truth, "--ground_truth")):
        if given and _value(first, given) is None:
            raise ConfigError(f"{option}: {data} has no column {given}. It has {', '.join(map(str, first))}.")
    truth = truth or next((name for name in TRUTHS if _value(first, name) is not None), "")
    if not prompt:
        messages = next((name for name in MESSAGES if isinstance(first.get(name), list)), "")
        if messages:
            return Columns("", messages, truth, tags, names)
        prompt = next((name for name in PROMPTS if isinstance(first.get(name), str)), "")
    if not prompt:
        raise ConfigError(
            f"--data: none of the columns of {data} is known to hold the prompt: {', '.join(map(str, first))}. Name it "
            "with --prompt COLUMN."
        )
    is_list = isinstance(first.get(prompt), list)
    return Columns("" if is_list else prompt, prompt if is_list else "", truth, tags, names)


def _value(row: Mapping[str, Any], name: str) -> Any:
    """Value of a column, or of column.name if a column holds mappings."""
    if name in row:
        return row[name]
    column, _, inner = name.partition(".")
    held = row.get(column)
    return held.get(inner) if inner and isinstance(held, Mapping) else None
