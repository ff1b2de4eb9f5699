"""The domains of an RLVR run as its data see them."""

from __future__ import annotations

from roll.datasets.rows import Domain
from roll.pipeline.rlvr.rewards.table import reads_ground_truth, required_columns, row_checks
from roll.pipeline.rlvr.rlvr_config import RLVRConfig


def data_domains(config: RLVRConfig) -> list[Domain]:
    """The domains as the data sees them: each domain's own name, its tags, and the columns that its reward needs.
    Imports the rewards."""
    domains = []
    for name, reward in config.rewards.items():
        tags = tuple(dict.fromkeys((name, *reward.tag_included)))
        required, some = required_columns(reward), reads_ground_truth(reward)
        domains.append(Domain(name, tags, required, some, row_checks(reward)))
    return domains
