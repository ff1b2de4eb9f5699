"""Builds the reading of rows from the keys of supervised fine-tuning."""

from __future__ import annotations

from roll.datasets.conversations import Columns
from roll.pipeline.sft.sft_config import SFTConfig


def columns(config: SFTConfig) -> Columns:
    names = (config.prompt_key, config.query_key, config.response_key, config.system_key, config.tools_key)
    return Columns(*names, config.train_on)
