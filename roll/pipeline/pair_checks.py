"""What is wrong with the keys and the rows of runs that learn from pairs."""

from collections.abc import Iterator

from roll.pipeline.operators.choice import dry_report
from roll.pipeline.operators.row import ReadTexts
from roll.pipeline.pair_config import PairConfig
from roll.pipeline.row_checks import unread_keys
from roll.pipeline.row_operators import places

_NOT_READ = ("prompt", "messages", "tag", "ground_truth", "domain_interleave_probs")


def pair_warnings(config: PairConfig) -> Iterator[str]:
    """Keys of rows that pairs have no use for."""
    yield from unread_keys(config, _NOT_READ, "prompt_key, chosen_key and rejected_key")


def row_problems(config: PairConfig) -> Iterator[str]:
    """What the front of the files says."""
    from roll.datasets.conversations import look_at_rows  # numpy: a dry run reads no rows
    from roll.pipeline.pair_rows import columns

    for at, args in config.data_args.items():
        yield from look_at_rows(args, at, columns(config))


def operator_reports(config: PairConfig) -> Iterator[str]:
    """What a dry run says of operators."""

    def read() -> ReadTexts:
        from roll.pipeline.pair_rows import read_texts  # torch: only where rows are read

        return read_texts(config)

    yield from dry_report(places(config), read)
