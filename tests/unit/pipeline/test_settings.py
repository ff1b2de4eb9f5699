"""What the keys of a configuration become."""

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
