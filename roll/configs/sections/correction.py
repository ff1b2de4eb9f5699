"""Settings of `train_infer_correction`."""

from typing import Literal

from roll.configs.base import Settings, setting

Granularity = Literal["token", "segment", "geometric", "sequence"]


class ISWeightConfig(Settings):
    """`train_infer_correction.is_weight`: importance weights between trainer and rollout engine."""

    enabled: bool | None = setting(
        None,
        "Weight the loss by the ratio of trainer and rollout probabilities. Default: where rollouts run ahead "
        "(async_generation_ratio above 0) and the engine's log-probs are not old log-probs already.",
    )
    weight_type: Granularity = setting("token", "Over what the ratio is taken.")
    upper_bound: float | None = setting(1.2, "Ratios are cut here.")
    detach: bool = setting(
        True, "No gradient through the weight; there is none: it is computed from old log-probs, which are constants."
    )


class TrainInferFilterConfig(Settings):
    """One of `train_infer_correction.filters`: leaves out what trainer and rollout engine disagree on."""

    enabled: bool = setting(False, "Switch this filter on.")
    agg_type: Granularity = setting("token", "Over what the disagreement is taken.")
    ratio_enabled: bool = setting(True, "Filter by probability ratio.")
    ratio_low: float = setting(0.8, "Smallest ratio kept.")
    ratio_high: float = setting(1.2, "Largest ratio kept.")
    diff_enabled: bool = setting(False, "Filter by probability difference.")
    diff_low: float = setting(-0.2, "Smallest difference kept.")
    diff_high: float = setting(0.2, "Largest difference kept.")


class TrainInferCorrectionConfig(Settings):
    """`train_infer_correction`: what to do about the two engines' different log-probs."""

    is_weight: ISWeightConfig = setting({}, "Importance weights.")
    filters: tuple[TrainInferFilterConfig, ...] = setting((), "Filters, applied in turn.")
