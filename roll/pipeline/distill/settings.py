"""Builds the objects of distillation from its keys."""

from __future__ import annotations

from roll.algorithms.divergence import Divergence
from roll.datasets.conversations import Columns
from roll.pipeline.distill.distill_config import DistillConfig


def columns(config: DistillConfig) -> Columns:
    return Columns(config.question_key, config.query_key, config.answer_key, config.system_key, config.tools_key)


def divergence(config: DistillConfig) -> Divergence:
    own, theirs = config.temperatures
    return Divergence(config.kd_objective, own, theirs, config.adaptive_kl_alpha, config.skew_lambda)
