"""The lines of `roll data check`."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import yaml

from roll.configs.base import LARGEST
from roll.configs.problems import did_you_mean
from roll.configs.sections.data import DataArgs
from roll.configs.sections.model import ModelArgs
from roll.configs.tables.sight import VisionModel
from roll.configs.tables.vision import UNKNOWN, vision_model
from roll.datasets.chosen_rows import Texts
from roll.datasets.conversations import Columns, load_conversations
from roll.datasets.encoding import load_tasks
from roll.datasets.loader import DataFile, Row
from roll.datasets.messages import CONVERSATIONS, are_messages, clean_messages
from roll.datasets.pictures.lengths import PictureLengths
from roll.datasets.preferences import PairColumns, load_pairs
from roll.datasets.rows import Domain, RowReader, tag_of
from roll.datasets.shown import named_columns
from roll.datasets.sources import Choose, all_rows, data_sources
from roll.errors import ConfigError
from roll.models.tokenizer import load_tokenizer
from roll.models.vision.files import vision_of
from roll.pipeline.dpo.dpo_config import DPOConfig
from roll.pipeline.sft.sft_config import SFTConfig
from roll.run.start.gguf import gguf_folder
from roll.types.batch import Rows
from roll.utils.text import middle_left_out, show, table, visible

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# How each kind of run reads a file of rows: prompts, conversations or pairs.

KEY = "data_args"
Lengths = Mapping[str, np.ndarray]
ShownRow = Sequence[tuple[str, str]]
"""A row as the model sees it: pieces of text, each with what it is."""
_CONVERSATION = ("prompt_key", "query_key", "response_key", "system_key", "tools_key")
_PAIR = ("prompt_key", "query_key", "chosen_key", "rejected_key", "system_key", "tools_key")


@dataclass(frozen=True)
class ReadOptions:
    """Settings with which rows are read: data_args, and the further columns that a run on rows needs. `names_truths`:
    the column of ground truths is among the requested ones."""

    args: DataArgs
    columns: Mapping[str, str] = field(default_factory=dict)
    names_truths: bool = False


@dataclass(frozen=True)
class Kind:
    """`read`: the texts of a row; raises ConfigError for one that cannot be read. `lengths`: tokens by what they are
    of, through template and tokenizer; `shown`: one row through them. `columns`: those that a run reads of a row."""

    pipeline: str
    what: str
    read: Callable[[Row], Texts]
    lengths: Callable[[PreTrainedTokenizerBase, Choose], Lengths]
    shown: Callable[[PreTrainedTokenizerBase, Row], ShownRow]
    columns: Callable[[Row], Sequence[str | None]]


def likely(rows: Sequence[Row], inputs: ReadOptions) -> str:
    """The kind of run that a file with these rows is for."""
    first = rows[0]
    pair, talk = _named(DPOConfig, _PAIR, inputs), _named(SFTConfig, _CONVERSATION, inputs)
    if all(first.value(str(pair[key])) is not None for key in ("chosen_key", "rejected_key")):
        return "dpo"
    columns = [inputs.args.messages] if inputs.args.messages else CONVERSATIONS
    if any(_is_answered(first.value(column)) for column in columns):
        return "sft"
    if first.value(str(talk["response_key"])) is not None:
        return "sft"
    if first.value(inputs.args.ground_truth) is not None:
        return "rlvr"
    return "sft" if any(first.value(column) is not None for column in _RESPONSES) else "rlvr"


_RESPONSES = ("completion", "response", "output", "generated_solution", "targets")
"""Usual names of responses; an answer or a solution may be what is compared."""


def _is_answered(value: object) -> bool:
    """True of messages that end with the assistant's."""
    try:
        return are_messages(value) and clean_messages(value, shows=True)[-1]["role"] == "assistant"
    except ValueError:
        return False


def kind_of(pipeline: str, inputs: ReadOptions, tags: Sequence[str], vision: VisionModel | None) -> Kind:
    """`tags`: those of the rows; `vision`: the model, None if it does not see pictures. Raises ConfigError for a word
    that this kind does not read."""
    args, sees = inputs.args, vision is not None
    check_columns(pipeline, inputs)
    if pipeline == "rlvr":
        domains = (Domain("rows", tuple(tags), required=()),)
        reader = RowReader(args, KEY, domains, vision)

        def prompts(tokenizer: PreTrainedTokenizerBase, choose: Choose) -> Lengths:
            tasks = load_tasks(args, KEY, domains, tokenizer, LARGEST, choose=choose, vision=vision).tasks
            lengths = np.array([len(task.prompt_ids) - len(task.pictures) for task in tasks])
            if vision is None:
                return {"prompt": lengths}
            sizes = vision.with_limits(args.image_min_pixels, args.image_max_pixels).sizes
            return {"prompt": lengths + PictureLengths(sizes).num_tokens([task.pictures for task in tasks])}

        def prompt(tokenizer: PreTrainedTokenizerBase, row: Row) -> ShownRow:
            (task,) = load_tasks(args, KEY, domains, tokenizer, LARGEST, choose=lambda _: [row], vision=vision).tasks
            return [("prompt", task.prompt_text)]

        return Kind(
            pipeline,
            "prompts for RLVR",
            lambda row: Texts(reader.read(row).question),
            prompts,
            prompt,
            lambda row: [*reader.columns(row), *(named_columns(args) if sees else ())],
        )
    talks = pipeline == "sft"
    columns: Columns | PairColumns
    if talks:
        columns = Columns(**_renamed(_named(SFTConfig, _CONVERSATION, inputs)), sees=sees)
    else:
        columns = PairColumns(**_renamed(_named(DPOConfig, _PAIR, inputs)), sees=sees)
    load: Any = load_conversations if talks else load_pairs

    def lengths(tokenizer: PreTrainedTokenizerBase, choose: Choose) -> Lengths:
        rows = load(args, KEY, columns, tokenizer, LARGEST, choose=choose, vision=vision)
        if talks:
            return {"row": rows.lengths, "learnt": rows.response_lengths}
        return {"chosen row": rows.lengths[::2], "rejected row": rows.lengths[1::2]}

    def shown(tokenizer: PreTrainedTokenizerBase, row: Row) -> ShownRow:
        rows = load(args, KEY, columns, tokenizer, LARGEST, choose=lambda _: [row], vision=vision)
        return _pieces(tokenizer, rows, ("learnt",) * len(rows) if talks else ("chosen", "rejected"))

    return Kind(
        pipeline,
        "conversations for supervised fine-tuning" if talks else "pairs for DPO and reward models",
        lambda row: columns.texts(row, args, KEY),
        lengths,
        shown,
        lambda row: columns.reads(row, args),
    )


def _pieces(tokenizer: PreTrainedTokenizerBase, rows: Rows, answers: Sequence[str]) -> ShownRow:
    """Pieces of all rows in their order: what is learnt, or compared, under the name in `answers`, and what is not."""
    return [piece for place, answer in enumerate(answers) for piece in _pieces_of_row(tokenizer, rows, place, answer)]


def _pieces_of_row(
    tokenizer: PreTrainedTokenizerBase, rows: Rows, place: int, answer: str
) -> Iterator[tuple[str, str]]:
    start = int(rows.lengths[:place].sum())
    ids, mask = (values[start : start + int(rows.lengths[place])] for values in (rows.input_ids, rows.response_mask))
    borders = [0, *(np.flatnonzero(mask[1:] != mask[:-1]) + 1).tolist(), len(mask)]
    for first, end in pairwise(borders):
        yield answer if mask[first] else "given", str(tokenizer.decode(ids[first:end].tolist()))


def _named(
    config: type[SFTConfig] | type[DPOConfig], keys: Sequence[str], inputs: ReadOptions
) -> dict[str, str | None]:
    """The columns by their keys, those that are not given as the run's settings have them."""
    return {key: inputs.columns.get(key, config.model_fields[key].get_default()) for key in keys}


def _renamed(columns: Mapping[str, str | None]) -> dict[str, Any]:
    return {key.removesuffix("_key"): column for key, column in columns.items()}


def check_columns(pipeline: str, inputs: ReadOptions) -> None:
    """Raises ConfigError for columns that are named and that this kind of run does not read."""
    known = {"sft": _CONVERSATION, "dpo": _PAIR}.get(pipeline, ())
    if unread := [key for key in inputs.columns if key not in known]:
        has = ", ".join(known) or "keys of data_args alone: prompt, messages, tools, ground_truth, tag, id"
        raise ConfigError(f"{', '.join(unread)}: not read from rows for {pipeline}. They have {has}.")


ARGS = (
    "prompt", "messages", "tools", "tag", "id", "ground_truth", "template", "split", "subset", "dataset_type",
    "generator", "image_key", "image_folder", "image_min_pixels", "image_max_pixels",
)  # fmt: skip
COLUMNS = ("prompt_key", "query_key", "response_key", "system_key", "tools_key", "chosen_key", "rejected_key")
MOST_PROBLEMS = 8
MOST_SHOWN = 4000  # characters of a row


@dataclass(frozen=True)
class _Readable:
    row: Row
    texts: Texts


def report(options: argparse.Namespace) -> Iterator[str]:
    """Line by line. Raises ConfigError at its end with what is wrong with the rows."""
    inputs = _read_options(options.words)
    rows = _rows(inputs.args)
    yield from _file_lines(rows, inputs.args)
    pipeline = options.pipeline or likely(rows, inputs)
    tags = sorted({tag for row in rows if (tag := tag_of(row, inputs.args.tag)) is not None})
    vision = _vision(options.tokenizer)
    kind = kind_of(pipeline, inputs, tags, vision)
    yield f"Read as {kind.what}{'' if options.pipeline else ', by the columns of the first row; --for says otherwise'}"
    readable, problems = _read(rows, kind)
    if pipeline == "rlvr" and tags:
        counts = Counter(str(tag_of(entry.row, inputs.args.tag)) for entry in readable)
        yield f"  {inputs.args.tag}: " + ", ".join(f"{tag} {count}" for tag, count in counts.most_common())
    yield from _unread_lines(rows, kind)
    tokenizer = None if options.tokenizer is None else load_tokenizer(gguf_folder(options.tokenizer), "--tokenizer")
    if readable:
        yield from _shown_lines(readable[0], kind, tokenizer)
    if tokenizer is not None and readable:
        yield from _token_lines(readable, kind, tokenizer, str(options.tokenizer), options.max_tokens)
    if inputs.names_truths and not any(row.value(inputs.args.ground_truth) is not None for row in rows):
        problems.append(f"ground_truth={inputs.args.ground_truth}: no row has it")
    if problems:
        raise ConfigError(*problems)
    yield f"Every one of {len(rows)} rows can be read."


def _vision(model: str | None) -> VisionModel | None:
    """How the model sees that is named; without one, rows may show pictures as if any did."""
    return vision_model(UNKNOWN, {}) if model is None else vision_of(ModelArgs(model_name_or_path=model))


def _read_options(words: Sequence[str]) -> ReadOptions:
    names = [word for word in words if "=" not in word.split("/")[0]]
    pairs = [word.split("=", 1) for word in words if word not in names]
    known = (*ARGS, *COLUMNS)
    for key, _ in pairs:
        if key not in known:
            raise ConfigError(f"{key}: no key here.{did_you_mean(key, known)} There are {', '.join(known)}.")
    if not names:
        raise ConfigError("name a file: roll data check FILE")
    chosen = dict(pairs)
    args = {key: yaml.safe_load(value) if key == "generator" else value for key, value in chosen.items() if key in ARGS}
    columns = {key: value for key, value in chosen.items() if key in COLUMNS}
    return ReadOptions(DataArgs.model_validate({"file_name": names, **args}), columns, "ground_truth" in chosen)


def _rows(args: DataArgs) -> list[Row]:
    sources, problems = data_sources(args, KEY)
    if problems:
        raise ConfigError(*problems)
    rows = list(all_rows([source.without_pictures(named_columns(args)) for source in sources]))
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
        kinds = Counter(type(value).__name__ for value in values)
        share = "all rows" if len(values) == len(rows) else f"{len(values)} of {len(rows)} rows"
        kind = " or ".join(kind for kind, _ in kinds.most_common()) or "nothing"
        yield str(name), kind, share, show(values[0], 50) if values else ""


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


def _statistics(parts: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    yield "", "shortest", "median", "95 %", "longest"
    for name, lengths in parts.items():
        cuts = np.percentile(np.asarray(lengths), (0, 50, 95, 100), method="higher")
        yield name, *(str(int(cut)) for cut in cuts)


def _unread_lines(rows: Sequence[Row], kind: Kind) -> Iterator[str]:
    """Columns that hold something and that nobody reads."""
    read = {name for row in rows for path in kind.columns(row) if path for name in (path, path.split(".")[0])}
    filled = dict.fromkeys(str(name) for row in rows for name in row.values if row.values[name] not in _NOTHING)
    if unread := [name for name in filled if name not in read]:
        may = " (rewards and operators may)" if kind.pipeline == "rlvr" else ""
        yield f"  columns that are not read{may}: {', '.join(unread)}"


_NOTHING: tuple[object, ...] = (None, "", [], {})


def _shown_lines(entry: _Readable, kind: Kind, tokenizer: PreTrainedTokenizerBase | None) -> Iterator[str]:
    """One row: with a tokenizer through the template, each piece with what it is; else its texts."""
    if tokenizer is None:
        yield f"The row {entry.row.short_place} as text; with --tokenizer as the model sees it"
        answers = ("chosen", "rejected") if len(entry.texts.responses) == 2 else ("answer",)
        pieces = [("prompt", entry.texts.prompt), *zip(answers, entry.texts.responses, strict=False)]
    else:
        yield f"The row {entry.row.short_place} as the model sees it"
        try:
            pieces = kind.shown(tokenizer, entry.row)
        except ConfigError as error:
            pieces = [("nothing", str(error))]
    for what, text in pieces:
        yield f"  {what}"
        yield from (f"  | {line}" for line in visible(middle_left_out(text, MOST_SHOWN)).split("\n"))


def _token_lines(
    readable: Sequence[_Readable], kind: Kind, tokenizer: PreTrainedTokenizerBase, name: str, most: int | None
) -> Iterator[str]:
    """Lines about lengths in tokens, through the template, as a run would see them."""
    lengths = kind.lengths(tokenizer, lambda sources: (entry.row for entry in readable))
    yield f"Lengths in tokens of {name}, through the template"
    yield from (f"  {line}" for line in table(_statistics(lengths)))
    if len(lengths.get("row", ())) > len(readable):  # several rows of one conversation
        yield (
            f"  {len(readable)} conversations are {len(lengths['row'])} rows of {lengths['row'].sum()} tokens, as the "
            "template changes earlier turns: docs/templates.md"
        )
    if most is not None:
        for what, counts in lengths.items():
            yield f"  {what}: {int((counts > most).sum())} of {len(counts)} have more than {most} tokens"
