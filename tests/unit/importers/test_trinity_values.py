"""Trinity-RFT's YAMLs with a word changed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from roll.importers.command import imported_from, yaml_text
from roll.importers.convert import Imported, SourceKeys, read

FOLDER = Path(__file__).parents[2] / "importers"
SOURCES = sorted(FOLDER.glob("*trinity*.yaml"))
OTHERS: dict[str, tuple[Any, ...]] = {
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


def others(key: str, value: Any) -> Iterator[Any]:
    """Other legal values of a key."""
    name = key.rpartition(".")[2]
    if name in OTHERS:
        yield from (other for other in OTHERS[name] if other != value)
    elif isinstance(value, bool):
        yield not value
    elif isinstance(value, int | float):
        yield value * 2 if value else 1
    elif isinstance(value, str) and "${" not in value:
        try:
            yield str(float(value) * 2)  # 1e-6, which YAML takes for a text
        except ValueError:
            yield f"{value}_other"


def of(given: SourceKeys, changed: str = "", value: Any = None) -> Imported:
    keys = tuple((key, value if key == changed else own) for key, own in given.keys)
    return imported_from(SourceKeys(given.tree, keys), "trinity")


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_another_value_changes_the_yaml_or_the_report_says_why_it_does_not(path: Path) -> None:
    """What is `mapped` with one value and makes the same YAML with another is mapped by no means."""
    given = read(path)
    text, silent, tried = yaml_text(of(given), ""), list[str](), 0
    for key, own in given.keys:
        for value in others(key, own):
            after = of(given, key, value)
            tried += 1
            (told,) = [one for one in after.entries if one.key == key]
            if value in SAME.get(key.rpartition(".")[2], ()):
                continue
            if yaml_text(after, "") == text and (told.outcome == "mapped" or len(told.note) < 5):
                silent.append(f"{key}: {own} and {value} are both {told.outcome}: {told.note}")
    assert silent == [] and tried > 10
