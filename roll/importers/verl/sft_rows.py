"""verl's keys for supervised fine-tuning (`sft_trainer`)."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from math import prod

from roll.importers.conversions import OF_EPOCH, every, files
from roll.importers.row_files import rows_of
from roll.importers.rows import CombinedKeys, Condition, SourceLookup, Split, Table, devices, split
from roll.importers.verl.adapters import flat_adapters
from roll.importers.verl.batches import PARALLEL, by_tokens, gpus
from roll.importers.verl.combined_keys import board, resume
from roll.importers.verl.common import (
    AVERAGES_PASSES,
    ENDS_SOONER,
    MEGATRON,
    NO_ADAPTERS,
    balance,
    counts_epochs,
    floor,
    has_adapters,
    is_cosine,
    schedule_of,
)
from roll.importers.verl.templates import ARGUMENT, DEFAULT_SWITCH, OF_MODEL, SWITCH, template_sums

ROLE = "sft_train"
_ARGS, _MODEL, _DATA = f"{ROLE}.training_args", f"{ROLE}.model_args", f"{ROLE}.data_args"
_CONFIG = f"{ROLE}.strategy_args.strategy_config"
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


def _columns(source: SourceLookup) -> CombinedKeys:
    """Conversations, or a prompt and a response; of each, the first of the columns that verl would look into."""
    if source("data.multiturn.enable", source.is_set("data.multiturn.messages_key")):
        name = source("data.multiturn.messages_key")
        settings = {f"{_DATA}.messages": name}
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


def _is_on_megatron(source: SourceLookup) -> bool:
    return (source("engine.strategy") or source("model.strategy")) == MEGATRON


def _batches(source: SourceLookup) -> CombinedKeys:
    rows = source.size("data.train_batch_size")
    together = source.size("ulysses_sequence_parallel_size")
    if _is_on_megatron(source):
        together = prod(source.size(f"engine.{kind}_size", 1) for kind in PARALLEL)
    ranks = max(1, gpus(source) // together)
    micro = source.number("data.micro_batch_size_per_gpu")
    if not source.is_set("data.micro_batch_size_per_gpu") and source.is_set("data.micro_batch_size"):
        micro = max(1, source.number("data.micro_batch_size") // ranks)
    made = split(rows, rows, ranks, micro)
    settings = {
        f"{_ARGS}.per_device_train_batch_size": made.micro,
        f"{_ARGS}.gradient_accumulation_steps": made.passes,
    }
    settings |= {f"{_MODEL}.ulysses_size": together} if together > 1 and not _is_on_megatron(source) else {}
    near = " ".join(filter(None, (made.near, _stops(source, rows // ranks, micro), _weights(source, made))))
    text = f"{made.samples} rows in every step: {made.text} ({gpus(source)} GPUs / {together})."
    return CombinedKeys(settings, text, near)


def _stops(source: SourceLookup, rows: int, micro: int) -> str:
    """Sentence on rows of a rank that are no whole micro batches, which verl refuses; empty where they are."""
    if source("data.use_dynamic_bsz") or micro < 1 or rows % micro == 0:
        return ""
    return f"Verl itself stops: the {rows} rows of a rank are no whole micro batches of {micro}."


def _weights(source: SourceLookup, made: Split) -> str:
    """How rows weigh in a step of verl's fine-tuning on FSDP alone; empty where they do as here."""
    if not source(AVERAGES_PASSES) or made.passes * made.ranks == 1:
        return ""
    if not source("data.balance_dp_token"):
        whose = f"each of the {made.passes * made.ranks} micro batches of a step weighs the same"
    elif made.passes > 1:
        whose = f"each of the {made.passes} passes of a step weighs the same"
    else:
        return ""
    return f"There {whose}, however many tokens it learns; here every token does."


def tokens(longest: Callable[[SourceLookup], int]) -> Callable[[SourceLookup], CombinedKeys]:
    """Micro batches by tokens. `longest` is the longest row that there can be."""

    def combine(source: SourceLookup) -> CombinedKeys:
        if not source("data.use_dynamic_bsz"):
            return CombinedKeys({}, "use_dynamic_bsz is off: micro batches are counted in rows")
        group = "engine.context_parallel_size" if _is_on_megatron(source) else "ulysses_sequence_parallel_size"
        most = source.number("data.max_token_len_per_gpu")
        return by_tokens(ROLE, "train", most, source.size(group, 1), longest(source))

    return combine


def _placement(source: SourceLookup) -> CombinedKeys:
    nodes, per_node = source.size("trainer.nnodes"), source.size("trainer.n_gpus_per_node")
    settings = {
        "num_nodes": nodes,
        "num_gpus_per_node": per_node,
        f"{ROLE}.device_mapping": devices(0, nodes * per_node),
    }
    return CombinedKeys(settings, f"{nodes} x {per_node} GPUs train.")


def _lora(source: SourceLookup) -> CombinedKeys:
    return flat_adapters(source, "model", _MODEL)


def _cuts(source: SourceLookup) -> CombinedKeys:
    """Cut rows that are too long as verl does, in training and validation."""
    rule = source("data.truncation")
    sections = [_DATA, *(["validation.data_args"] if source("data.val_files") else [])]
    return CombinedKeys({f"{at}.truncation": rule for at in sections}, f"data_args.truncation: {rule}.")


def _end(source: SourceLookup) -> CombinedKeys:
    """The last step. verl's fine-tuning on FSDP alone draws the rate's schedule over all epochs, and stops in it."""
    if not source.is_set("trainer.total_training_steps"):
        return CombinedKeys({}, "not given")
    steps = source.size("trainer.total_training_steps")
    settings, text = {"max_steps": steps}, f"max_steps: {steps}."
    share = source.amount("optim.lr_warmup_steps_ratio", source("optim.warmup_steps_ratio"))
    name = schedule_of(source, "optim")
    if not source(AVERAGES_PASSES) or (name == "constant" and share == 0):
        return CombinedKeys(settings, text, ENDS_SOONER)
    said = (
        f"{text} There it only stops the run: the warm-up and the fall of the rate are those of all steps of "
        f"trainer.total_epochs, here those of {steps}. Near that, where the epochs are much longer: "
        "optim.lr_scheduler=constant with optim.warmup_steps_ratio=0 after the file, and "
        "sft_train.training_args.warmup_steps in the YAML"
    )
    return CombinedKeys(settings, text, changes={"trainer.total_training_steps": said})


_ONLY_AT_THE_END = 1_000_000
"""Steps between two checkpoints, of which only the last step of a run has one."""


def _saved(source: SourceLookup) -> CombinedKeys:
    """verl's fine-tuning saves what it trained after the last step, whatever save_freq says."""
    steps = every(source("trainer.save_freq"))
    if steps != -1:
        return CombinedKeys({"save_steps": steps}, f"save_steps: {steps}.")
    near = _OF_EPOCHS.format("saves") if _may_follow_epochs(source, "trainer.save_freq") else ""
    return CombinedKeys({"save_steps": _ONLY_AT_THE_END}, "save_steps: the last step saves, as there.", near)


_OF_EPOCHS = "Verl before 0.5, which has no such key, {} after each epoch."


def _may_follow_epochs(source: SourceLookup, key: str) -> bool:
    """Whether the version may be one that does at the end of an epoch what the key says later."""
    return bool(source(AVERAGES_PASSES)) and not source.is_set(key)


def _validations(source: SourceLookup) -> CombinedKeys:
    """verl's fine-tuning validates after the last step, whatever test_freq says, and never before the first."""
    if source("trainer.test_freq") == "after_each_epoch" and source("data.val_files"):
        return CombinedKeys({"val_before_train": False}, "", lost={"trainer.test_freq": OF_EPOCH})
    steps = every(source("trainer.test_freq"))
    if not source("data.val_files"):
        return CombinedKeys({"eval_steps": -1}, "eval_steps: -1: there are no data.val_files")
    steps = _ONLY_AT_THE_END if steps == -1 else steps
    said, near = str(steps), ""
    if steps == _ONLY_AT_THE_END:
        said = "the last step alone"
        near = _OF_EPOCHS.format("validates") if _may_follow_epochs(source, "trainer.test_freq") else ""
    return CombinedKeys({"eval_steps": steps, "val_before_train": False}, f"eval_steps: {said}.", near)


_CONDITIONS: Mapping[str, Condition] = {
    "lora": lambda source: "" if has_adapters(source, "model") else NO_ADAPTERS,
    "epochs": counts_epochs,
    "cosine": is_cosine("optim"),
    "fsdp": lambda source: f"engine.strategy is {MEGATRON}" if _is_on_megatron(source) else "",
    MEGATRON: lambda source: "" if _is_on_megatron(source) else "engine.strategy is not megatron",
}
_COMBINED_KEYS: Mapping[str, Callable[[SourceLookup], CombinedKeys]] = {
    "batches": _batches,
    "tokens": tokens(lambda source: source.size("data.max_length")),
    "placement": _placement,
    "columns": _columns,
    "cuts": _cuts,
    "validations": _validations,
    "saves": _saved,
    "end": _end,
    "trackers": board,
    "lora": _lora,
    "floor": floor("", ROLE),
    f"{ROLE} balance": balance("engine", ROLE),
    "resume": resume,
    **template_sums(ROLE),
}

SFT = Table("verl", "sft", rows_of("verl/sft.yaml"), _COMBINED_KEYS, _CONDITIONS)
