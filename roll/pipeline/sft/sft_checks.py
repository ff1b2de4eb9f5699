"""What is wrong with the keys and the rows of supervised fine-tuning."""

from collections.abc import Iterator

from roll.pipeline.row_checks import unread_keys
from roll.pipeline.sft.sft_config import SFTConfig

_NOT_READ = ("prompt", "tag", "ground_truth", "domain_interleave_probs")


def sft_warnings(config: SFTConfig) -> Iterator[str]:
    """Keys of rows that supervised fine-tuning has no use for."""
    yield from unread_keys(config, _NOT_READ, "prompt_key, response_key and data_args.messages")


def row_problems(config: SFTConfig) -> Iterator[str]:
    """What the front of the files says."""
    from roll.datasets.conversations import look_at_rows  # numpy: a dry run reads no rows
    from roll.pipeline.sft.settings import columns

    for at, args in config.data_args.items():
        yield from look_at_rows(args, at, columns(config))
