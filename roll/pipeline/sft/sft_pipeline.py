"""Supervised fine-tuning: the loss is the mean negative log-likelihood of the responses' tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from roll.algorithms.loss import SupervisedLoss
from roll.configs.data import DataArgs
from roll.datasets.conversations import load_conversations
from roll.pipeline.policy_tokenizer import policy_tokenizer
from roll.pipeline.row_pipeline import RowPipeline
from roll.pipeline.sft.settings import columns
from roll.pipeline.sft.sft_config import SFTConfig
from roll.types.batch import Rows


class SFTPipeline(RowPipeline):
    """Rows are conversations from files."""

    config: SFTConfig
    loss = SupervisedLoss()

    def load_rows(self) -> tuple[Rows, Rows | None]:
        config = self.config
        self.tokenizer = policy_tokenizer("sft_train", config.sft_train.model_args)
        held_out = config.validation
        rows = self._load(config.sft_train.data_args, "sft_train.data_args")
        return rows, None if held_out is None else self._load(held_out.data_args, "validation.data_args")

    def _load(self, args: DataArgs, key: str) -> Rows:
        return load_conversations(
            args, key, columns(self.config), self.tokenizer, self.config.sequence_length, self.config.global_template
        )

    def save(self, directory: Path) -> dict[str, Any]:
        state = super().save(directory)
        self.tokenizer.save_pretrained(directory / "hf_model")
        return state
