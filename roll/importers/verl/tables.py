"""verl's tables, and which of them a configuration needs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from roll.importers.given import Given
from roll.importers.rows import Table
from roll.importers.verl.combined_keys import SUMS
from roll.importers.verl.sft_rows import SFT
from roll.importers.verl.turns import plays, turns_table
from roll.importers.verl.verl_conditions import CONDITIONS, ROLLOUT
from roll.importers.verl.verl_programs import program_notes
from roll.importers.verl.verl_rows import ROWS
from roll.importers.verl.versions import WHOLE_STEPS, derived, version_notes

_OF_SFT = ("model.partial_pretrain", "data.prompt_dict_keys", "data.multiturn.enable", "data.max_length", "optim.lr")
CONFIG_NAME = "config-name"
_OF_ENGINE: Mapping[str, str] = {
    "engine.ulysses_sequence_parallel_size": "ulysses_sequence_parallel_size",
    "model.use_remove_padding": "use_remove_padding",
    "engine.use_remove_padding": "use_remove_padding",
    "data.messages_key": "data.multiturn.messages_key",
}
"""Keys of newer versions, and what older ones call the same."""
ASCEND = "backend_config"
"""The section in which the guide for Ascend has verl's keys."""
FLAGS: Mapping[str, str] = {
    "nproc-per-node": "trainer.n_gpus_per_node",
    "nnodes": "trainer.nnodes",
    CONFIG_NAME: "actor_rollout_ref.actor.strategy",
}
"""Words of the command that say what a key says as well."""


def is_verl(tree: Mapping[str, Any]) -> bool:
    inner = tree.get(ASCEND)
    if isinstance(inner, Mapping):
        return is_verl(inner)
    model = tree.get("model")
    return "actor_rollout_ref" in tree or (isinstance(model, Mapping) and "partial_pretrain" in model)


def verl_table(given: Given, script: Path | None = None) -> Table:
    """The table for what the keys train; tools are read from files beside the script."""
    keys = {_known_as(key) for key, _ in given.keys}
    program = " ".join(given.command.program) if given.command else ""
    is_sft = "sft_trainer" in program or any(key in keys for key in _OF_SFT)
    is_rl = any(key.startswith("actor_rollout_ref.") for key in keys)
    if is_sft and not is_rl:
        return VERL_SFT
    values = {_known_as(key): value for key, value in given.keys}
    return turns_table(VERL_RL, values, script) if plays(values) else VERL_RL


def verl_keys(given: Given) -> list[tuple[str, Any]]:
    """The keys with what the words of a launcher and the name of the configuration say beside them."""
    keys = list(given.keys)
    there = {_known_as(key) for key, _ in keys}
    if any("megatron" in base for base in given.bases) and FLAGS[CONFIG_NAME] not in there:
        keys.append((f"--{CONFIG_NAME}", "megatron"))
    for flag, known_as in FLAGS.items():
        value = given.command.flag(flag) if given.command else None
        if value is None or flag == CONFIG_NAME or known_as in there:
            continue
        if value.isdecimal():
            keys.append((f"--{flag}", int(value)))
        elif "$" in value:
            keys.append((known_as, value))
    return keys


def verl_notes(given: Given) -> Iterator[str]:
    """What the words of a command say that no key has taken."""
    values = {_known_as(key): value for key, value in given.keys}
    there = values.keys()
    yield from version_notes(values)
    yield from program_notes(given.command.program if given.command else ())
    for flag, known_as in FLAGS.items():
        value = given.command.flag(flag) if given.command else None
        if flag != CONFIG_NAME and value and known_as not in there and not value.isdecimal() and "$" not in value:
            yield f"--{flag} {value} is unknown, so verl's default is used: give {known_as}=8 after the file."


def _known_as(key: str) -> str:
    """Name of a key in the table: without the section of Ascend's guide and without a launcher's words."""
    key = FLAGS.get(key.removeprefix("--"), key).removeprefix(f"{ASCEND}.")
    return f"{ROLLOUT}.{key}" if key.startswith("engine_kwargs.") else key


VERL_RL = Table("verl", "rlvr", ROWS, SUMS, CONDITIONS, _known_as, derived)
VERL_SFT = replace(SFT, canonical=lambda key: _OF_ENGINE.get(key, _known_as(key)), derived=lambda given: WHOLE_STEPS)
