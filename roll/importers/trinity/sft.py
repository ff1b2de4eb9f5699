"""Trinity-RFT's keys of fine-tuning, in the words of verl's; pairs of answers share most of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from roll.importers.conversions import scorer
from roll.importers.row_files import rows_of
from roll.importers.rows import (
    ApproximateValue,
    ChangesRun,
    CombinedKeys,
    Condition,
    NotHere,
    SourceLookup,
    Table,
    data,
)
from roll.importers.trinity.combined_keys import folders, resume, trackers
from roll.importers.trinity.rows import BUFFER, ROW_NAMES, SFT_NAMES, is_read, name_of, own_rows
from roll.importers.trinity.steps import lengths_in_yaml, shortest
from roll.importers.verl.releases import SFT_ALONE, below_trinity
from roll.importers.verl.sft_rows import ROLE, SFT, tokens

_EVERY_TURN = f"{BUFFER}.format.enable_concatenated_multi_turn"


def longest(source: SourceLookup) -> int:
    parts = [source(f"trinity.model.max_{kind}_tokens") for kind in ("prompt", "response")]
    whole = source("trinity.model.max_model_len") or (sum(parts) if all(isinstance(p, int) for p in parts) else None)
    if whole is None:
        raise NotHere("sequence_length needs model.max_model_len, or the tokens of prompt and response")
    if not str(whole).isdigit() or int(whole) < 2:
        raise ChangesRun(f"{whole} is no length of a row, in tokens")
    return int(whole)


def _row_length(source: SourceLookup) -> CombinedKeys:
    whole = longest(source)
    parts = [f"trinity.model.max_{kind}_tokens" for kind in ("prompt", "response")]
    nears = dict.fromkeys(parts, "max_model_len counts.") if source("trinity.model.max_model_len") else {}
    return CombinedKeys({"sequence_length": whole}, f"sequence_length: {whole}.", differences=nears)


def _row_steps(source: SourceLookup) -> CombinedKeys:
    if not dict(lengths_in_yaml(source)):
        return CombinedKeys({}, "epochs count")
    steps, nears = shortest(source)
    return CombinedKeys({"max_steps": steps}, f"max_steps: {steps}.", differences=nears)


def _columns(source: SourceLookup) -> CombinedKeys:
    """Columns of rows for fine-tuning: conversations, unless they are declared plain."""
    if source(f"trinity.{BUFFER}.format.prompt_type", "messages") == "messages":
        name = source("data.multiturn.messages_key")
        part = "all" if source(f"trinity.{_EVERY_TURN}") else "last"
        settings = {"sft_train.data_args.messages": name, "train_on": part}
        what = "every answer" if part == "all" else "the last answer"
        return CombinedKeys(settings, f"data_args.messages: {name}, of which {what} is learnt (train_on: {part}).")
    names = [source(f"data.{kind}_key") for kind in ("prompt", "response")]
    settings = {"prompt_key": names[0], "response_key": names[1]}
    return CombinedKeys(settings, f"prompt_key: {names[0]}, response_key: {names[1]}.")


def _batches(source: SourceLookup) -> CombinedKeys:
    if source("data.train_batch_size") is None:
        raise ChangesRun("buffer.train_batch_size is missing, and must be given there: rows of an update")
    return SFT.sums["batches"](source)


def _whole_batch(source: SourceLookup) -> str:
    return "train_batch_size counts" if source.is_set("data.train_batch_size") else ""


SUMS_OF_ROWS: Mapping[str, Callable[[SourceLookup], CombinedKeys]] = {
    **SFT.sums,
    "batches": _batches,
    "folders": folders,
    "trackers": trackers,
    "row length": _row_length,
    "tokens": tokens(longest),
    "row steps": _row_steps,
    "resume": resume,
}
_EXPLORER = ("trinity.buffer.explorer_input", "trinity.explorer")
CONDITIONS_OF_ROWS: Mapping[str, Condition] = {
    **SFT.conditions,
    "unread config": is_read,
    "rows made": lambda source: "it sees the tasks of an explorer" if any(map(source.below, _EXPLORER)) else "",
    "whole batch": _whole_batch,
    "epochs": lambda source: "" if not dict(lengths_in_yaml(source)) else "total_steps counts",
}


def rows_derived(values: Mapping[str, Any]) -> dict[str, Any]:
    """Defaults there; adapters that only have a name have these sizes. Before train_batch_size an update had the rows
    of buffer.batch_size."""
    named = "trinity.model.lora_configs.0.name" in values
    defaults = data("trinity/algorithms.yaml")["defaults of rows"] | (
        dict.fromkeys(("model.lora_rank", "model.lora_alpha"), 32) if named else {}
    )
    return defaults | {"data.train_batch_size": values.get("trinity.buffer.batch_size")}


_OF_VERL = rows_of("trinity/rows_of_verl.yaml")
_SFT_ROWS = tuple(row for row in SFT.rows if row.key not in [own.key for own in _OF_VERL])
TRINITY_SFT = Table(
    "trinity",
    "sft",
    (*_OF_VERL, *own_rows("sft", "shared", "rows"), *_SFT_ROWS),
    {**SUMS_OF_ROWS, "columns": _columns},
    CONDITIONS_OF_ROWS,
    lambda key: name_of(key, SFT_NAMES),
    rows_derived,
    release=below_trinity(SFT_ALONE, (*SFT.rows, *_OF_VERL)),
)


# Trinity-RFT's keys of DPO: its rows are fine-tuning's with two answers, its learner is actor_train.

_FORMAT = f"{BUFFER}.format"
_BETA, _COEFFICIENT = "algorithm.policy_loss_fn_args.beta", "algorithm.kl_loss_fn_args.kl_coef"
_LEARNER = "actor_train"
_DEFAULT_BETA = 0.1


def _moved(key: str) -> str:
    return f"{_LEARNER}{key.removeprefix(ROLE)}" if key.startswith(f"{ROLE}.") else key


def _sum_of_pairs(sum: Callable[[SourceLookup], CombinedKeys]) -> Callable[[SourceLookup], CombinedKeys]:
    def moved(source: SourceLookup) -> CombinedKeys:
        made = sum(source)
        settings = {_moved(key): value for key, value in made.settings.items()}
        near = made.difference.replace("the longest row", "the two rows of a pair")
        return replace(made, settings=settings, text=made.text.replace(" rows ", " pairs "), difference=near)

    return moved


def _placement(source: SourceLookup) -> CombinedKeys:
    """The reference takes turns with the learner."""
    made = _sum_of_pairs(SFT.sums["placement"])(source)
    name = scorer(source("model.strategy"))
    reference = {
        "reference.device_mapping": made.settings[f"{_LEARNER}.device_mapping"],
        "reference.strategy_args.strategy_name": name.value if isinstance(name, ApproximateValue) else name,
    }
    return replace(made, settings={**made.settings, **reference}, text=f"{made.text} The reference is on them as well.")


def _beta(source: SourceLookup) -> CombinedKeys:
    stated = [key for key in (_BETA, _COEFFICIENT) if source.is_set(f"trinity.{key}")]
    beta = source.amount(f"trinity.{stated[0]}") if stated else _DEFAULT_BETA
    lost = (
        {f"trinity.{_COEFFICIENT}": f"{_BETA} counts; a KL beside DPO's loss is not here"} if len(stated) == 2 else {}
    )
    return CombinedKeys({"beta": beta}, f"beta: {beta:g}.", lost=lost)


def _pair_columns(source: SourceLookup) -> CombinedKeys:
    """The prompt's: messages, unless it is said to be plain."""
    plain = source(f"trinity.{_FORMAT}.prompt_type", "messages") == "plaintext"
    name = (
        source(f"trinity.{_FORMAT}.prompt_key", "prompt")
        if plain
        else source(f"trinity.{_FORMAT}.messages_key", "messages")
    )
    return CombinedKeys({"prompt_key": name}, f"prompt_key: {name}; texts and messages are distinguished row by row.")


TRINITY_DPO = Table(
    "trinity",
    "dpo",
    tuple(
        replace(row, targets=tuple(map(_moved, row.targets)))
        for row in (*_OF_VERL, *own_rows("dpo", "shared", "rows"), *_SFT_ROWS)
        if row.key.startswith("trinity.") or not (row.sum == "columns" or row.key.startswith("data.multiturn"))
    ),
    {
        **{name: _sum_of_pairs(sum) for name, sum in SUMS_OF_ROWS.items()},
        "placement": _placement,
        "tokens": _sum_of_pairs(tokens(lambda source: 2 * longest(source))),
        "beta": _beta,
        "columns": _pair_columns,
    },
    CONDITIONS_OF_ROWS,
    lambda key: name_of(key, ROW_NAMES),
    rows_derived,
    release=TRINITY_SFT.release,
)
