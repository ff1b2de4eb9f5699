"""Change any one key of a configuration of verl or Trinity-RFT: the YAML changes, or the report says why not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from roll.importers.command import imported_from, yaml_text
from roll.importers.convert import Imported, SourceKeys, read
from tests.unit.importers.test_import import SOURCES

_OF_VERL: dict[str, tuple[Any, ...]] = {
    "adv_estimator": ("rloo",), "strategy": ("fsdp2",), "kl_loss_type": ("k1",), "kl_penalty": ("abs",),
    "loss_agg_mode": ("seq-mean-token-sum",), "truncation": ("right",), "logger": (["tensorboard"],),
    "lr_scheduler_type": ("linear",), "warmup_style": ("linear",), "resume_mode": ("disable",), "dtype": ("float16",),
    "target_modules": (["q_proj"],), "type": ("adaptive",), "name": ("hf",), "reward_manager": ("mine",),
    "val_files": ("other.parquet",), "train_files": ("other.parquet",),
}  # fmt: skip
_OF_TRINITY: dict[str, tuple[Any, ...]] = {
    "algorithm_type": ("ppo", "opmd", "dapo", "sft"), "advantage_fn": ("rloo",), "kl_loss_fn": ("k1",),
    "kl_penalty_fn": ("k2",), "sample_strategy": ("mix",), "entropy_loss_fn": ("mix",), "mode": ("explore", "both"),
    "monitor_type": ("mlflow",), "storage_type": ("sql", "file"), "sync_method": ("checkpoint",),
    "sync_style": ("dynamic_by_trainer",), "trainer_strategy": ("megatron",), "strategy": ("megatron", "fsdp2"),
    "warmup_style": ("cosine",), "engine_type": ("sglang", "vllm_async"), "save_strategy": ("single_node",),
    "save_hf_checkpoint": ("always", "never"), "resume_mode": ("disable",), "op_type": ("MUL",),
    "prompt_type": ("messages",), "recompute_method": ("block",), "recompute_granularity": ("selective",),
    "default_reward_fn_type": ("accuracy_reward", "my_rewards.Mine"), "level": ("DEBUG",), "dtype": ("float16",),
    "default_workflow_type": ("simple_workflow", "alfworld_workflow"),
}  # fmt: skip
SAME: dict[str, tuple[Any, ...]] = {
    "algorithm_type": ("ppo", "dapo"),  # where an advantage_fn, or bounds and a KL, stand beside it
    "engine_type": ("vllm_async",), "strategy": ("fsdp2",), "hybrid_engine": (False,),
    "default_workflow_type": ("simple_workflow",),  # where a reward stands beside it
}  # fmt: skip
"""Values that mean the same there, or here."""


def others(key: str, value: Any, legal: dict[str, tuple[Any, ...]]) -> Iterator[Any]:
    """Other legal values of a key; none of one that the environment or a reference has."""
    name = key.rpartition(".")[2]
    if name in legal:
        yield from (other for other in legal[name] if other != value)
    elif isinstance(value, bool):
        yield not value
    elif isinstance(value, int | float):
        yield value * 2 if value > 0 else 1
    elif isinstance(value, str) and "$" not in value:
        try:
            yield str(float(value) * 2)  # 1e-6, which YAML takes for a text
        except ValueError:
            yield f"{value}2"


def of(given: SourceKeys, system: str, changed: str = "", value: Any = None) -> Imported:
    keys = tuple((key, value if key == changed else own) for key, own in given.keys)
    return imported_from(replace(given, keys=keys), system)


@pytest.mark.parametrize("path", [path for path in SOURCES if "roll" not in path.name], ids=lambda path: path.name)
def test_another_value_of_a_key_changes_the_yaml_or_the_report_says_why_not(path: Path) -> None:
    """What is `mapped` with one value and makes the same YAML with another is mapped by no means."""
    system = "trinity" if "trinity" in path.name else "verl"
    same = SAME if system == "trinity" else {}
    given = read(path)
    before, silent, tried = of(given, system), list[str](), 0
    text, was = yaml_text(before, ""), {entry.key: entry.note for entry in before.entries}
    for key, own in given.keys:
        for value in others(key, own, _OF_TRINITY if system == "trinity" else _OF_VERL):
            after = of(given, system, key, value)
            tried += 1
            told = next(entry for entry in after.entries if entry.key == key)
            if value in same.get(key.rpartition(".")[2], ()) or yaml_text(after, "") != text:
                continue
            if len(told.note) < 5 or (told.outcome == "mapped" and was[key] == told.note):
                silent.append(f"{key}: {own} and {value} are both {told.outcome}: {told.note}")
    assert silent == [] and tried > 10
