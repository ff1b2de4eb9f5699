"""Supervised fine-tuning: the loss is the mean negative log-likelihood of the responses' tokens."""

from roll.algorithms.loss import SupervisedLoss
from roll.datasets.conversations import Columns, load_conversations
from roll.pipeline.rows.row_pipeline import RowPipeline
from roll.pipeline.rows.row_sources import rows_of
from roll.pipeline.sft.sft_config import SFTConfig
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
        self.tokenizer = policy_tokenizer("sft_train", self.config.sft_train.model_args)
        return rows_of(self.config, load_conversations, columns(self.config), self.tokenizer, self.vision)
