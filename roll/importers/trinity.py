"""Trinity-RFT's tables: most of its keys are verl's under other names, since it trains with verl's workers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from roll.errors import ConfigError
from roll.importers.given import Given
from roll.importers.rows import Table
from roll.importers.trinity_rows import OWN_ROWS, RENAMED, RENAMED_SECTIONS, SFT_RENAMED, SFT_ROWS
from roll.importers.trinity_sums import TRINITY_CONDITIONS, TRINITY_SFT_SUMS, TRINITY_SUMS, algorithm_defaults
from roll.importers.verl_conditions import CONDITIONS
from roll.importers.verl_rows import ROWS
from roll.importers.verl_sft_rows import SFT
from roll.importers.verl_sums import SUMS


def is_trinity(tree: Mapping[str, Any]) -> bool:
    algorithm = tree.get("algorithm")
    return "algorithm_type" in algorithm if isinstance(algorithm, Mapping) else "buffer" in tree and "explorer" in tree


def trinity_table(given: Given) -> Table:
    """Raises ConfigError for a kind of training that is not here."""
    kind = dict(given.keys).get("algorithm.algorithm_type", "grpo")
    if kind == "dpo":
        raise ConfigError(
            "algorithm.algorithm_type: dpo is not imported. Write the YAML for examples/start_dpo_pipeline.py: "
            "kl_loss_fn_args.kl_coef is its beta."
        )
    return TRINITY_SFT if kind == "sft" else TRINITY_RL


def _of_rl(key: str) -> str:
    if key in RENAMED:
        return RENAMED[key]
    for section, theirs in RENAMED_SECTIONS.items():
        if key.startswith(section + "."):
            return theirs + key[len(section) :]
    return f"trinity.{key}"


def _of_sft(key: str) -> str:
    if key in SFT_RENAMED:
        return SFT_RENAMED[key]
    optimizer = "algorithm.optimizer."
    return f"optim.{key.removeprefix(optimizer)}" if key.startswith(optimizer) else f"trinity.{key}"


TRINITY_RL = Table(
    "trinity",
    "rlvr",
    (*OWN_ROWS, *ROWS),
    {**SUMS, **TRINITY_SUMS},
    {**CONDITIONS, **TRINITY_CONDITIONS},
    _of_rl,
    algorithm_defaults,
)
TRINITY_SFT = Table(
    "trinity",
    "sft",
    (*SFT_ROWS, *SFT.rows),
    {**SFT.sums, **TRINITY_SFT_SUMS},
    SFT.conditions,
    _of_sft,
    lambda given: {
        "optim.lr": 1e-6,
        "optim.betas": [0.9, 0.999],
        "optim.lr_scheduler": "constant",
        "optim.warmup_steps_ratio": 0.0,
        "model.strategy": "fsdp2",
        "trainer.logger": "tensorboard",
        "trainer.total_epochs": 1,
    },
)
