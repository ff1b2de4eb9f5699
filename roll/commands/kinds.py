"""How each kind of run reads a file of rows: prompts, conversations or pairs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from roll.configs.limits import LARGEST
from roll.configs.sections.data import DataArgs
from roll.datasets.conversations import USUAL_COLUMNS, Columns, load_conversations
from roll.datasets.encoding import load_tasks
from roll.datasets.loader import Row
from roll.datasets.messages import CONVERSATIONS, are_messages, clean_messages
from roll.datasets.preferences import PairColumns, load_pairs
from roll.datasets.rows import Domain, RowReader
from roll.datasets.sources import Choose
from roll.errors import ConfigError
from roll.pipeline.dpo.dpo_config import DPOConfig
from roll.pipeline.rows.row_sources import pair_texts
from roll.pipeline.sft.sft_config import SFTConfig
from roll.run.operators.conversation_texts import conversation_texts
from roll.run.operators.operators_row import Texts
from roll.types.batch import Rows

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

KEY = "data_args"
Lengths = Mapping[str, np.ndarray]
Seen = Sequence[tuple[str, str]]
"""A row as the model sees it: pieces of text, each with what it is."""
_CONVERSATION = ("prompt_key", "query_key", "response_key", "system_key", "tools_key")
_PAIR = ("prompt_key", "query_key", "chosen_key", "rejected_key", "system_key", "tools_key")


@dataclass(frozen=True)
class Given:
    """What the rows are read with: data_args, and the names of columns that a run on rows has beside them.
    `names_truths`: the column of ground truths is among what was asked for."""

    args: DataArgs
    columns: Mapping[str, str] = field(default_factory=dict)
    names_truths: bool = False


@dataclass(frozen=True)
class Kind:
    """`read`: the texts of a row; raises ConfigError for one that cannot be read. `lengths`: tokens by what they are
    of, through template and tokenizer; `seen`: one row through them. `columns`: those that a run reads of a row."""

    pipeline: str
    what: str
    read: Callable[[Row], Texts]
    lengths: Callable[[PreTrainedTokenizerBase, Choose], Lengths]
    seen: Callable[[PreTrainedTokenizerBase, Row], Seen]
    columns: Callable[[Row], Sequence[str | None]]


def likely(rows: Sequence[Row], given: Given) -> str:
    """The kind of run that a file with these rows is for."""
    first = rows[0]
    pair, talk = _named(DPOConfig, _PAIR, given), _named(SFTConfig, _CONVERSATION, given)
    if all(first.value(str(pair[key])) is not None for key in ("chosen_key", "rejected_key")):
        return "dpo"
    columns = [given.args.messages] if given.args.messages else CONVERSATIONS
    if any(_is_answered(first.value(column)) for column in columns):
        return "sft"
    if first.value(str(talk["response_key"])) is not None:
        return "sft"
    if first.value(given.args.ground_truth) is not None:
        return "rlvr"
    responses = {response for _, response in USUAL_COLUMNS} - {"answer", "solution"}  # which may be what is compared
    return "sft" if any(first.value(column) is not None for column in responses) else "rlvr"


def _is_answered(value: object) -> bool:
    """True of messages that end with the assistant's."""
    try:
        return are_messages(value) and clean_messages(value)[-1]["role"] == "assistant"
    except ValueError:
        return False


def kind_of(pipeline: str, given: Given, tags: Sequence[str]) -> Kind:
    """`tags`: those of the rows. Raises ConfigError for a word that this kind does not read."""
    args = given.args
    check_columns(pipeline, given)
    if pipeline == "rlvr":
        domains = (Domain("rows", tuple(tags), required=()),)
        reader = RowReader(args, KEY, domains)

        def prompts(tokenizer: PreTrainedTokenizerBase, choose: Choose) -> Lengths:
            tasks = load_tasks(args, KEY, domains, tokenizer, LARGEST, choose=choose).tasks
            return {"prompt": np.array([len(task.prompt_ids) for task in tasks])}

        def prompt(tokenizer: PreTrainedTokenizerBase, row: Row) -> Seen:
            (task,) = load_tasks(args, KEY, domains, tokenizer, LARGEST, choose=lambda _: [row]).tasks
            return [("prompt", task.prompt_text)]

        return Kind(
            pipeline, "prompts for RLVR", lambda row: Texts(reader.read(row).question), prompts, prompt, reader.columns
        )
    if pipeline == "sft":
        columns = Columns(**_renamed(_named(SFTConfig, _CONVERSATION, given)))
        read_texts = conversation_texts(columns)

        def conversations(tokenizer: PreTrainedTokenizerBase, choose: Choose) -> Lengths:
            rows = load_conversations(args, KEY, columns, tokenizer, LARGEST, choose=choose)
            return {"row": rows.lengths, "learnt": rows.response_lengths}

        def conversation(tokenizer: PreTrainedTokenizerBase, row: Row) -> Seen:
            rows = load_conversations(args, KEY, columns, tokenizer, LARGEST, choose=lambda _: [row])
            return _pieces(tokenizer, rows, ("learnt",) * len(rows))

        return Kind(
            pipeline,
            "conversations for supervised fine-tuning",
            lambda row: read_texts(row, args, KEY),
            conversations,
            conversation,
            lambda row: columns.reads(row, args),
        )
    pair = PairColumns(**_renamed(_named(DPOConfig, _PAIR, given)))

    def pairs(tokenizer: PreTrainedTokenizerBase, choose: Choose) -> Lengths:
        rows = load_pairs(args, KEY, pair, tokenizer, LARGEST, choose=choose)
        return {"chosen row": rows.lengths[::2], "rejected row": rows.lengths[1::2]}

    def both(tokenizer: PreTrainedTokenizerBase, row: Row) -> Seen:
        rows = load_pairs(args, KEY, pair, tokenizer, LARGEST, choose=lambda _: [row])
        return _pieces(tokenizer, rows, ("chosen", "rejected"))

    return Kind(
        pipeline,
        "pairs for DPO and reward models",
        lambda row: pair_texts(pair, row, args, KEY),
        pairs,
        both,
        lambda row: pair.reads(row, args),
    )


def _pieces(tokenizer: PreTrainedTokenizerBase, rows: Rows, answers: Sequence[str]) -> Seen:
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


def _named(config: type[SFTConfig] | type[DPOConfig], keys: Sequence[str], given: Given) -> dict[str, str | None]:
    """The columns by their keys, those that are not given as the run's settings have them."""
    return {key: given.columns.get(key, config.model_fields[key].get_default()) for key in keys}


def _renamed(columns: Mapping[str, str | None]) -> dict[str, Any]:
    return {key.removesuffix("_key"): column for key, column in columns.items()}


def check_columns(pipeline: str, given: Given) -> None:
    """Raises ConfigError for columns that are named and that this kind of run does not read."""
    known = {"sft": _CONVERSATION, "dpo": _PAIR}.get(pipeline, ())
    if unread := [key for key in given.columns if key not in known]:
        has = ", ".join(known) or "keys of data_args alone: prompt, messages, tools, ground_truth, tag, id"
        raise ConfigError(f"{', '.join(unread)}: not read from rows for {pipeline}. They have {has}.")
