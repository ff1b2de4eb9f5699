"""Supervised fine-tuning: the loss is the mean negative log-likelihood of the responses' tokens."""

from __future__ import annotations

from roll.algorithms.loss import SupervisedLoss
from roll.datasets.conversations import Columns, load_conversations
from roll.pipeline.rows.row_pipeline import RowPipeline
from roll.pipeline.rows.row_sources import places
from roll.pipeline.sft.sft_config import SFTConfig
from roll.run.operators.choice import row_choice
from roll.run.operators.conversation_texts import conversation_texts
from roll.run.policy_tokenizer import policy_tokenizer
from roll.types.batch import Rows

# Builds the reading of rows from the keys of supervised fine-tuning.


def columns(config: SFTConfig) -> Columns:
    names = (config.prompt_key, config.query_key, config.response_key, config.system_key, config.tools_key)
    return Columns(*names, config.train_on)


class SFTPipeline(RowPipeline):
    """Rows are conversations from files."""

    config: SFTConfig
    loss = SupervisedLoss()

    def load_rows(self) -> tuple[Rows, Rows | None]:
        config, learner = self.config, self.config.sft_train
        self.tokenizer = policy_tokenizer("sft_train", learner.model_args)
        reads = columns(config), self.tokenizer, config.sequence_length, config.global_template
        texts = conversation_texts(columns(config))
        choices = {at: row_choice(places(config), at, texts, self.tokenizer) for at in config.data_args}
        rows, *held_out = (load_conversations(args, at, *reads, choices[at]) for at, args in config.data_args.items())
        return rows, held_out[0] if held_out else None
