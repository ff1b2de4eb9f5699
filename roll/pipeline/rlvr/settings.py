"""Maps RLVR's keys to the settings of row weights."""

from __future__ import annotations

from roll.algorithms.masking import RowWeightSettings
from roll.pipeline.rlvr.rlvr_config import RLVRConfig


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
