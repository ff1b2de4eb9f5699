"""From RLVR's keys to the settings of data and row weights."""

from __future__ import annotations

from roll.algorithms.masking import RowWeightSettings
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


def row_weight_settings(config: RLVRConfig) -> RowWeightSettings | None:
    """None when every row counts alike."""
    chosen = RowWeightSettings(
        max_len_mask=config.max_len_mask,
        difficulty_mask=config.difficulty_mask,
        difficulty_low_threshold=config.difficulty_low_threshold,
        difficulty_high_threshold=config.difficulty_high_threshold,
        error_max_len_clip=config.error_max_len_clip,
        error_max_len_threshold=config.error_max_len_threshold,
        length_loss_weight=config.length_loss_weight,
        difficulty_loss_weight=config.difficulty_loss_weight,
    )
    switches = ("max_len_mask", "difficulty_mask", "error_max_len_clip", "length_loss_weight", "difficulty_loss_weight")
    return chosen if any(getattr(config, name) for name in switches) else None
