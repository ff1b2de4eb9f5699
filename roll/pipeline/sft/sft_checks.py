"""What is wrong with the keys and the rows of supervised fine-tuning."""

from collections.abc import Iterator

from roll.pipeline.operators.choice import dry_report
from roll.pipeline.operators.row import ReadTexts
from roll.pipeline.row_checks import unread_keys
from roll.pipeline.row_operators import places
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


def operator_reports(config: SFTConfig) -> Iterator[str]:
    """What a dry run says of operators."""

    def read() -> ReadTexts:
        from roll.pipeline.conversation_texts import conversation_texts  # torch: only where rows are read
        from roll.pipeline.sft.settings import columns

        return conversation_texts(columns(config))

    yield from dry_report(places(config), read)
