"""Columns of verl's fine-tuning, and how it renders them: an answer behind its prompt, or message by message."""

from __future__ import annotations

import re

from roll.importers.conversions import files
from roll.importers.rows import CombinedKeys, SourceLookup
from roll.importers.verl.templates import ARGUMENT, DEFAULT_SWITCH, OF_MODEL, SWITCH

DATA = "sft_train.data_args"
MISMATCH = "data.ignore_input_ids_mismatch"
_SETS_TEMPLATE = (SWITCH, DEFAULT_SWITCH, ARGUMENT, OF_MODEL)
_QWEN3 = re.compile(r"qwen3(?!\.\d|[-_]?(vl|omni|coder|next))(?!.*thinking)", re.IGNORECASE)
_CHANGES_ANSWERS = re.compile(r"qwen3|qwq|(?<![a-z])r1(?!\d)|think", re.IGNORECASE)
_AS_IT_IS = "there an answer stands behind its prompt as it is, closed by the tokenizer's end of text"
_OF_BASE = "The end of text of a base model is <|endoftext|> there; here <|im_end|> closes an answer."
_SAME = "the same tokens where the model's template writes answers so"
_STOPS = "Verl since 0.7 stops where messages by themselves make other tokens than all together."
_ROWS = "a row whose template changes earlier answers becomes a row per answer"
_ONE_ROW = f"There every answer is learnt in one row, however the template changes earlier ones; here {_ROWS}."


def columns(source: SourceLookup) -> CombinedKeys:
    """Conversations, or a prompt and a response; of each, the first of the columns that verl would look into."""
    if source("data.multiturn.enable", source.is_set("data.multiturn.messages_key")):
        name = source("data.multiturn.messages_key")
        settings = {f"{DATA}.messages": name}
        settings |= {"validation.data_args.messages": name} if source("data.val_files") else {}
        read = CombinedKeys(settings, f"data_args.messages: {name}, of which every answer is learnt.")
        return _of_messages(source, read)
    inner = {kind: files(source(f"data.{kind}_dict_keys") or []) for kind in ("prompt", "response")}
    names = {
        kind: f"{source(f'data.{kind}_key')}" + (f".{keys[0]}" if keys and _is_nested(source, kind) else "")
        for kind, keys in inner.items()
    }
    settings = {f"{kind}_key": name for kind, name in names.items()}
    return _of_answer(
        source, CombinedKeys(settings, f"prompt_key: {names['prompt']}, response_key: {names['response']}.")
    )


def _is_nested(source: SourceLookup, kind: str) -> bool:
    """verl's keys within a column count where the column is another one than the key itself."""
    return source.is_set(f"data.{kind}_dict_keys") and source(f"data.{kind}_dict_keys") != [source(f"data.{kind}_key")]


def _of_answer(source: SourceLookup, read: CombinedKeys) -> CombinedKeys:
    """Columns of a prompt and an answer, which no template sees there."""
    if _is_given(source):
        return read
    text = read.text.removesuffix(".")
    if _QWEN3.search(_model(source)):
        settings = {**read.settings, "global_template": "chatml"}
        near = _OF_BASE if "base" in _model(source).lower() else ""
        said = f"{text}; global_template: chatml: {_AS_IT_IS}, and nothing is put before it."
        return CombinedKeys(settings, said, near)
    near = ""
    if _CHANGES_ANSWERS.search(_model(source)):
        near = f"{_AS_IT_IS[0].upper()}{_AS_IT_IS[1:]}; here the model's template renders it, and may change thoughts."
    return CombinedKeys(read.settings, f"{text}: {_AS_IT_IS}; {_SAME}.", near)


def _of_messages(source: SourceLookup, read: CombinedKeys) -> CombinedKeys:
    """A column of messages, which are rendered one by one there, and whole here."""
    text, forgives = read.text.removesuffix("."), source(MISMATCH) is True
    changes = forgives or _CHANGES_ANSWERS.search(_model(source)) is not None
    stops = "" if forgives or not source("model.path") else f" {_STOPS}"
    return CombinedKeys(read.settings, f"{text}.{stops}", _ONE_ROW if changes else "")


def _model(source: SourceLookup) -> str:
    return str(source("model.path") or source("model.partial_pretrain") or "")


def _is_given(source: SourceLookup) -> bool:
    return any(source(key) not in (None, "none") for key in _SETS_TEMPLATE)
