"""Change any one key of a configuration of verl: the YAML changes, or the report says why it need not."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from roll.importers.command import imported_from
from roll.importers.convert import read
from tests.unit.importers.test_import import FOLDER

SOURCES = sorted([*FOLDER.glob("verl_*"), *FOLDER.glob("guide_verl*")])
OTHERS = {
    "adv_estimator": "rloo",
    "strategy": "fsdp2",
    "kl_loss_type": "k1",
    "kl_penalty": "abs",
    "loss_agg_mode": "seq-mean-token-sum",
    "truncation": "right",
    "logger": ["tensorboard"],
    "lr_scheduler_type": "linear",
    "warmup_style": "linear",
    "resume_mode": "disable",
    "dtype": "float16",
    "target_modules": ["q_proj"],
    "type": "adaptive",
    "name": "hf",
    "reward_manager": "mine",
    "val_files": "other.parquet",
    "train_files": "other.parquet",
}


def other(key: str, value: Any) -> Any:
    """Another legal value of the key; None of one that the environment or a reference has."""
    name = key.rpartition(".")[2]
    if name in OTHERS:
        return OTHERS[name] if OTHERS[name] != value else None
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value * 2 if value > 0 else 1
    if isinstance(value, str) and "$" not in value:
        try:
            return float(value) * 2
        except ValueError:
            return f"{value}2" if value else "x"
    return None


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.name)
def test_another_value_of_a_key_is_in_the_yaml_or_in_the_report(source: Path) -> None:
    given = read(source)
    before = imported_from(given, "verl")
    silent = []
    for key, value in given.keys:
        word = other(key, value)
        if word is None:
            continue
        keys = tuple((each, word if each == key else held) for each, held in given.keys)
        changed = imported_from(replace(given, keys=keys), "verl")
        was, told = (next(entry for entry in found.entries if entry.key == key) for found in (before, changed))
        says_so = told.note and (told.outcome != "mapped" or was.note != told.note)
        if changed.tree == before.tree and not says_so:
            silent.append(f"{key}: {value} -> {word}: {told.outcome} {told.note}")
    assert silent == []  # each: what it was, what it became, what the report says
