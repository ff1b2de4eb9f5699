"""What is wrong with the keys and the rows of runs that learn from pairs."""

from collections.abc import Iterator

from roll.pipeline.rows.pair_config import PairConfig
from roll.pipeline.rows.row_checks import unread_keys

_NOT_READ = ("prompt", "messages", "tag", "ground_truth", "tools", "domain_interleave_probs")


def pair_warnings(config: PairConfig) -> Iterator[str]:
    """Keys of rows that pairs have no use for."""
    yield from unread_keys(config.data_args, _NOT_READ, "prompt_key, chosen_key and rejected_key")
