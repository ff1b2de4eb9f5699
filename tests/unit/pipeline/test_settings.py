"""What the keys of a configuration become."""

from typing import Any

import pytest

from roll.algorithms.objectives import (
    BoundedWeight,
    ClippedRatio,
    Objective,
    PolicyGradient,
    SquaredPenalty,
    TaperedWeight,
)
from roll.algorithms.off_policy import ImportanceWeight, MismatchFilter, TrainInferCorrection
from roll.configs.derive import old_log_probs
from roll.pipeline.settings import policy_loss
from tests.helpers.configs import config

FILTER = {"enabled": True, "agg_type": "sequence", "ratio_low": 0.5, "ratio_high": 2.0, "diff_enabled": True}


def test_train_infer_correction_reaches_the_loss_with_all_its_keys() -> None:
    keys = {
        "is_weight": {"enabled": True, "weight_type": "geometric", "upper_bound": 2.5, "detach": False},
        "filters": [FILTER, {"enabled": False, "ratio_low": 0.9}],
    }
    given = config({"train_infer_correction": keys})
    assert policy_loss(given, 12).correction == TrainInferCorrection(
        ImportanceWeight("geometric", 2.5, detach=False),
        (MismatchFilter("sequence", True, 0.5, 2.0, True, -0.2, 0.2),),
    )
    assert old_log_probs(given, 1).source == "pass"


def test_without_it_the_loss_corrects_nothing() -> None:
    assert policy_loss(config(), 12).correction is None
    assert policy_loss(config({"train_infer_correction.filters": [{"enabled": False}]}), 12).correction is None


@pytest.mark.parametrize(
    ("keys", "objective"),
    [
        ({}, ClippedRatio(0.2, 0.2)),
        (
            {"use_pg_clip_range": True, "pg_clip_high": 0.3, "dual_clip_loss": True, "dual_clip_ratio_c": 4},
            ClippedRatio(0.2, 0.3, 4.0),
        ),
        ({"pg_variant": "vanilla"}, PolicyGradient()),
        ({"pg_variant": "tis"}, BoundedWeight(0.0, 1.0)),
        ({"pg_variant": "tis", "tis_lower_bound": 0.5, "tis_upper_bound": 2}, BoundedWeight(0.5, 2.0)),
        ({"pg_variant": "cispo", "cispo_epsilon_low": 1.5, "cispo_epsilon_high": 4}, BoundedWeight(0.0, 5.0)),
        ({"pg_variant": "cispo", "cispo_use_unified_mask": True}, BoundedWeight(0.9, 1.1, drops_settled=True)),
        ({"pg_variant": "topr", "actor_train.topr_negative_weight": 0.5}, TaperedWeight(1.0, 0.5)),
        ({"actor_train.pg_variant": "kimi15", "kimi15_tau": 0.3}, SquaredPenalty(0.3)),
    ],
)
def test_pg_variant_and_its_keys_choose_the_objective(keys: dict[str, Any], objective: Objective) -> None:
    assert policy_loss(config(keys), 12).objective == objective
