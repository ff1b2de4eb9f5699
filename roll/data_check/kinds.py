"""How each kind of run reads a file of rows: prompts, conversations or pairs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from roll.configs.data import DataArgs
from roll.configs.limits import LARGEST
from roll.datasets.conversations import Columns, load_conversations
from roll.datasets.encoding import load_tasks
from roll.datasets.loader import Row
from roll.datasets.preferences import PairColumns, load_pairs
from roll.datasets.rows import Domain, RowReader
from roll.datasets.sources import Choose
from roll.errors import ConfigError
from roll.pipeline.dpo.dpo_config import DPOConfig
from roll.pipeline.operators.row import Texts
from roll.pipeline.rows.conversation_texts import conversation_texts
from roll.pipeline.rows.pair_rows import pair_texts
from roll.pipeline.sft.sft_config import SFTConfig

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

KEY = "data_args"
Lengths = Mapping[str, np.ndarray]
_CONVERSATION = ("prompt_key", "query_key", "response_key", "system_key", "tools_key")
_PAIR = ("prompt_key", "query_key", "chosen_key", "rejected_key", "system_key")


@dataclass(frozen=True)
class Given:
    """What the rows are read with: data_args, and the names of columns that a run on rows has beside them."""

    args: DataArgs
    columns: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Kind:
    """`read`: the texts of a row; raises ConfigError for one that cannot be read. `lengths`: tokens by what they are
    of, through template and tokenizer."""

    pipeline: str
    what: str
    read: Callable[[Row], Texts]
    lengths: Callable[[PreTrainedTokenizerBase, Choose], Lengths]


def likely(rows: Sequence[Row], given: Given) -> str:
    """The kind of run that a file with these rows is for."""
    first = rows[0]
    pair, talk = _named(DPOConfig, _PAIR, given), _named(SFTConfig, _CONVERSATION, given)
    if all(first.value(str(pair[key])) is not None for key in ("chosen_key", "rejected_key")):
        return "dpo"
    messages: Any = first.value(given.args.messages or "messages")
    last = messages[-1] if isinstance(messages, list) and messages else None
    answered = isinstance(last, Mapping) and last.get("role") == "assistant"
    return "sft" if answered or first.value(str(talk["response_key"])) is not None else "rlvr"


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

        return Kind(pipeline, "prompts for RLVR", lambda row: Texts(reader.read(row).question), prompts)
    if pipeline == "sft":
        columns = Columns(**_renamed(_named(SFTConfig, _CONVERSATION, given)))
        read_texts = conversation_texts(columns)

        def conversations(tokenizer: PreTrainedTokenizerBase, choose: Choose) -> Lengths:
            rows = load_conversations(args, KEY, columns, tokenizer, LARGEST, choose=choose)
            return {"row": rows.lengths, "learnt": rows.response_lengths}

        return Kind(
            pipeline,
            "conversations for supervised fine-tuning",
            lambda row: read_texts(row, args, KEY),
            conversations,
        )
    pair = PairColumns(**_renamed(_named(DPOConfig, _PAIR, given)))

    def pairs(tokenizer: PreTrainedTokenizerBase, choose: Choose) -> Lengths:
        rows = load_pairs(args, KEY, pair, tokenizer, LARGEST, choose=choose)
        return {"chosen row": rows.lengths[::2], "rejected row": rows.lengths[1::2]}

    return Kind(pipeline, "pairs for DPO and reward models", lambda row: pair_texts(pair, row, args, KEY), pairs)


def _named(config: type[SFTConfig] | type[DPOConfig], keys: Sequence[str], given: Given) -> dict[str, str | None]:
    """The columns by their keys, those that are not given as the run's settings have them."""
    return {key: given.columns.get(key, config.model_fields[key].get_default()) for key in keys}


def _renamed(columns: Mapping[str, str | None]) -> dict[str, Any]:
    return {key.removesuffix("_key"): column for key, column in columns.items()}


def check_columns(pipeline: str, given: Given) -> None:
    """Raises ConfigError for columns that are named and that this kind of run does not read."""
    known = {"sft": _CONVERSATION, "dpo": _PAIR}.get(pipeline, ())
    if unread := [key for key in given.columns if key not in known]:
        has = ", ".join(known) or "keys of data_args alone: prompt, messages, ground_truth, tag, id"
        raise ConfigError(f"{', '.join(unread)}: rows for {pipeline} are read without. They have {has}.")
