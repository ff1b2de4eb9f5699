"""What is wrong with the keys and the rows of supervised fine-tuning."""

from collections.abc import Iterator

from roll.pipeline.rows.row_checks import unread_keys
from roll.pipeline.sft.sft_config import SFTConfig

_NOT_READ = ("prompt", "tag", "ground_truth", "tools", "domain_interleave_probs")


def sft_warnings(config: SFTConfig) -> Iterator[str]:
    """Keys of rows that supervised fine-tuning has no use for."""
    yield from unread_keys(config.data_args, _NOT_READ, "prompt_key, response_key and data_args.messages")
