"""The lines of `roll data check`."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

from roll.commands.kinds import KEY, Given, Kind, kind_of, likely
from roll.configs.problems import did_you_mean
from roll.configs.sections.data import DataArgs
from roll.datasets.loader import DataFile, Row
from roll.datasets.sources import all_rows, data_sources
from roll.errors import ConfigError
from roll.models.tokenizer import load_tokenizer
from roll.run.operators.operators_row import Texts
from roll.run.operators.texts import near
from roll.run.operators.words import ngrams, normalised, words
from roll.utils.text import middle_left_out, show, table, visible

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

ARGS = (
    "prompt", "messages", "tools", "tag", "id", "ground_truth", "template", "split", "subset", "dataset_type",
)  # fmt: skip
COLUMNS = ("prompt_key", "query_key", "response_key", "system_key", "tools_key", "chosen_key", "rejected_key")
MOST_PROBLEMS = 8
MOST_PLACES = 5
MOST_SHOWN = 4000  # characters of a row
NGRAM = 5


@dataclass(frozen=True)
class _Readable:
    row: Row
    texts: Texts


def report(options: argparse.Namespace) -> Iterator[str]:
    """Line by line. Raises ConfigError at its end with what is wrong with the rows."""
    given = _given(options.words)
    rows = _rows(given.args)
    yield from _file_lines(rows, given.args)
    pipeline = options.pipeline or likely(rows, given)
    tags = sorted({str(tag) for row in rows if (tag := row.values.get(given.args.tag)) is not None})
    kind = kind_of(pipeline, given, tags)
    yield f"Read as {kind.what}{'' if options.pipeline else ', by the columns of the first row; --for says otherwise'}"
    readable, problems = _read(rows, kind)
    yield from (f"  {line}" for line in _about(readable, given.args, kind, tags))
    yield from (f"  {line}" for line in _unread_lines(rows, kind))
    yield from _length_lines(readable)
    yield from _duplicate_lines(readable, options.similarity)
    tokenizer = None if options.tokenizer is None else load_tokenizer(options.tokenizer, "--tokenizer")
    if readable:
        yield from _shown_lines(readable[0], kind, tokenizer)
    if tokenizer is not None and readable:
        yield from _token_lines(readable, kind, tokenizer, str(options.tokenizer), options.max_tokens)
    if given.names_truths and not any(row.value(given.args.ground_truth) is not None for row in rows):
        problems.append(f"ground_truth={given.args.ground_truth}: no row has it")
    if problems:
        raise ConfigError(*problems)
    yield f"Every one of {len(rows)} rows can be read."


def _given(words: Sequence[str]) -> Given:
    names = [word for word in words if "=" not in word.split("/")[0]]
    pairs = [word.split("=", 1) for word in words if word not in names]
    known = (*ARGS, *COLUMNS)
    for key, _ in pairs:
        if key not in known:
            raise ConfigError(f"{key}: no key here.{did_you_mean(key, known)} There are {', '.join(known)}.")
    if not names:
        raise ConfigError("name a file: roll data check FILE")
    chosen = dict(pairs)
    args = {key: value for key, value in chosen.items() if key in ARGS}
    columns = {key: value for key, value in chosen.items() if key in COLUMNS}
    return Given(DataArgs.model_validate({"file_name": names, **args}), columns, "ground_truth" in chosen)


def _rows(args: DataArgs) -> list[Row]:
    sources, problems = data_sources(args, KEY)
    if problems:
        raise ConfigError(*problems)
    rows = list(all_rows(sources))
    if not rows:
        raise ConfigError(f"{', '.join(args.file_name)}: there are no rows.")
    return rows


def _file_lines(rows: Sequence[Row], args: DataArgs) -> Iterator[str]:
    sources, _ = data_sources(args, KEY)
    counts = Counter(row.file for row in rows)
    yield "Files"
    for source in sources:
        format = source.format if isinstance(source, DataFile) else "elsewhere"
        yield f"  {source.name}: {format}, {counts[source.name]} rows"
    yield "Columns"
    yield from (f"  {line}" for line in table(_column_rows(rows)))


def _column_rows(rows: Sequence[Row]) -> Iterator[tuple[str, ...]]:
    names = list(dict.fromkeys(name for row in rows for name in row.values))
    for name in names:
        values = [row.values[name] for row in rows if row.values.get(name) is not None]
        kinds = Counter(_kind(value) for value in values)
        share = "all rows" if len(values) == len(rows) else f"{len(values)} of {len(rows)} rows"
        kind = " or ".join(kind for kind, _ in kinds.most_common()) or "nothing"
        yield str(name), kind, share, show(values[0], 50) if values else ""


def _kind(value: object) -> str:
    if isinstance(value, bool):
        return "true or false"
    if isinstance(value, str):
        return "text"
    if isinstance(value, int | float):
        return "number"
    if isinstance(value, list):
        return "messages" if value and isinstance(value[0], Mapping) and "role" in value[0] else "list"
    return "mapping" if isinstance(value, Mapping) else type(value).__name__


def _read(rows: Sequence[Row], kind: Kind) -> tuple[list[_Readable], list[str]]:
    """Rows with the same problem are told once, with the first of them and their number."""
    readable: list[_Readable] = []
    first: dict[str, str] = {}
    counts: Counter[str] = Counter()
    for row in rows:
        try:
            readable.append(_Readable(row, kind.read(row)))
        except ConfigError as error:
            text = str(error).removeprefix(row.where)
            first.setdefault(text, str(error))
            counts[text] += 1
    problems = [
        first[text] + (f" ({count} of {len(rows)} rows)" if count > 1 else "")
        for text, count in counts.most_common(MOST_PROBLEMS)
    ]
    rest = len(counts) - len(problems)
    return readable, [*problems, *([f"and {rest} more kinds of problems"] if rest > 0 else [])]


def _about(readable: Sequence[_Readable], args: DataArgs, kind: Kind, tags: Sequence[str]) -> Iterator[str]:
    """What a run of this kind makes of columns beside the texts."""
    if kind.pipeline != "rlvr":
        return
    truths = sum(found.row.value(args.ground_truth) not in (None, "") for found in readable)
    yield f"{args.ground_truth} (most rewards compare with it): {truths} of {len(readable)} rows"
    if tags:
        counts = Counter(str(found.row.values.get(args.tag)) for found in readable)
        yield f"{args.tag}: " + ", ".join(f"{tag} {count}" for tag, count in counts.most_common())
    else:
        yield f"no column {args.tag}: all rows belong to the run's only domain"


def _length_lines(readable: Sequence[_Readable]) -> Iterator[str]:
    if not readable:
        return
    parts: dict[str, list[int]] = {"prompt": [len(found.texts.prompt) for found in readable]}
    most = max(len(found.texts.responses) for found in readable)
    names = ("chosen", "rejected") if most == 2 else ("answer",)
    for place in range(most):
        parts[names[place]] = [len(found.texts.responses[place]) for found in readable]
    yield "Lengths in characters"
    yield from (f"  {line}" for line in table(_statistics(parts)))


def _statistics(parts: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    yield "", "shortest", "median", "95 %", "longest"
    for name, lengths in parts.items():
        cuts = np.percentile(np.asarray(lengths), (0, 50, 95, 100), method="higher")
        yield name, *(str(int(cut)) for cut in cuts)


def _duplicate_lines(readable: Sequence[_Readable], similarity: float | None) -> Iterator[str]:
    yield "Duplicates"
    for name, texts in (
        ("prompts", [found.texts.prompt for found in readable]),
        ("whole rows", ["\n".join([found.texts.prompt, *found.texts.responses]) for found in readable]),
    ):
        if name == "whole rows" and not any(found.texts.responses for found in readable):
            continue
        seen: dict[str, None] = {}
        again: list[str] = []
        for found, text in zip(readable, map(normalised, texts), strict=True):
            again += [found.row.short_place] if text in seen else []
            seen[text] = None
        places = f": {', '.join(again[:MOST_PLACES])}{' ...' if len(again) > MOST_PLACES else ''}" if again else ""
        yield f"  {name} that an earlier row has too: {len(again)}{places}"
        if similarity is not None:
            sets = [ngrams(words(text), NGRAM) for text in seen]
            count = sum(near(sets, Fraction(str(similarity))))
            yield f"  others whose {NGRAM}-grams have a Jaccard similarity of {similarity:g} or more: {count}"


def _unread_lines(rows: Sequence[Row], kind: Kind) -> Iterator[str]:
    """Columns that hold something and that nobody reads."""
    read = {name for row in rows for path in kind.columns(row) if path for name in (path, path.split(".")[0])}
    filled = dict.fromkeys(str(name) for row in rows for name in row.values if row.values[name] not in _NOTHING)
    if unread := [name for name in filled if name not in read]:
        may = " (rewards and operators may)" if kind.pipeline == "rlvr" else ""
        yield f"columns that are not read{may}: {', '.join(unread)}"
        if kind.pipeline != "rlvr":
            yield (
                "  prompt_key, query_key, response_key, system_key, tools_key and similar keys name the columns that "
                "are read"
            )


_NOTHING: tuple[object, ...] = (None, "", [], {})


def _shown_lines(found: _Readable, kind: Kind, tokenizer: PreTrainedTokenizerBase | None) -> Iterator[str]:
    """One row: with a tokenizer through the template, each piece with what it is; else its texts."""
    if tokenizer is None:
        yield f"The row {found.row.short_place} as text; with --tokenizer as the model sees it"
        answers = ("chosen", "rejected") if len(found.texts.responses) == 2 else ("answer",)
        pieces = [("prompt", found.texts.prompt), *zip(answers, found.texts.responses, strict=False)]
    else:
        yield f"The row {found.row.short_place} as the model sees it"
        try:
            pieces = kind.seen(tokenizer, found.row)
        except ConfigError as error:
            pieces = [("nothing", str(error))]
    for what, text in pieces:
        yield f"  {what}"
        yield from (f"  | {line}" for line in visible(middle_left_out(text, MOST_SHOWN)).split("\n"))


def _token_lines(
    readable: Sequence[_Readable], kind: Kind, tokenizer: PreTrainedTokenizerBase, name: str, most: int | None
) -> Iterator[str]:
    """Lines about lengths in tokens, through the template, as a run would see them."""
    lengths = kind.lengths(tokenizer, lambda sources: (found.row for found in readable))
    yield f"Lengths in tokens of {name}, through the template"
    yield from (f"  {line}" for line in table(_statistics(lengths)))
    if len(lengths.get("row", ())) > len(readable):  # several rows of one conversation
        yield (
            f"  {len(readable)} conversations are {len(lengths['row'])} rows of {lengths['row'].sum()} tokens, as the "
            "template changes earlier turns: docs/templates.md"
        )
    if most is not None:
        for what, found in lengths.items():
            yield f"  {what}: {int((found > most).sum())} of {len(found)} have more than {most} tokens"
