"""Settings of supervised fine-tuning."""

from collections.abc import Iterator
from functools import partial
from typing import Annotated, Literal

from pydantic import AfterValidator

from roll.configs.base import setting
from roll.configs.sections.cluster import WorkerConfig
from roll.configs.tables.presets import known_algorithm
from roll.configs.tables.roles import TOKENIZER, Role
from roll.pipeline.rows.row_config import VALIDATION, RowConfig
from roll.run.start.load import unread_keys

SFT_TRAIN = Role(
    "sft_train", "train", "lm", ("pretrain",), is_needed=True, also_reads=frozenset({"data_args", TOKENIZER})
)


class SFTConfig(RowConfig):
    """All keys of supervised fine-tuning."""

    role_table = {role.name: role for role in (SFT_TRAIN, VALIDATION)}
    learner = SFT_TRAIN.name
    algorithms = "sft"
    columns = "roll.pipeline.sft.sft_pipeline:columns"

    sft_train: WorkerConfig = setting({}, "The model that learns.")
    algorithm: Annotated[str, AfterValidator(partial(known_algorithm, pipeline="sft"))] | None = setting(
        None, "An algorithm by name: sft, which says what this run does anyhow."
    )

    # columns
    prompt_key: str = setting("instruction", "Column with the prompt, of rows that hold no messages.")
    response_key: str = setting("output", "Column with the response.")
    train_on: Literal["all", "last"] = setting(
        "all", "For rows with messages: learn every turn of the assistant, or the last one alone."
    )


def sft_warnings(config: SFTConfig) -> Iterator[str]:
    """Keys of rows that supervised fine-tuning has no use for."""
    yield from unread_keys(config.data_args, "prompt_key, response_key and data_args.messages")
