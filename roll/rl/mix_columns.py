"""Reads the keys that describe an expert's rows."""

from __future__ import annotations

from roll.configs.sections.teachers import ExpertRowsConfig
from roll.datasets.conversations import Columns


def columns_of(keys: ExpertRowsConfig) -> Columns:
    names = (keys.prompt_key, keys.query_key, keys.response_key, keys.system_key, keys.tools_key)
    return Columns(*names, keys.train_on)
