"""Builds the objects of direct preference optimization from its settings."""

from roll.algorithms.preference import DPOLoss
from roll.pipeline.dpo.dpo_config import DPOConfig


def dpo_loss(config: DPOConfig) -> DPOLoss:
    return DPOLoss(
        beta=config.beta,
        ipo=config.ipo,
        label_smoothing=config.label_smoothing,
        average_log_probs=config.average_log_probs,
        reference_free=config.reference_free,
        sft_loss_coef=config.sft_loss_coef,
    )
