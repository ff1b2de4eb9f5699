"""verl's rollout_correction becomes train_infer_correction."""

from __future__ import annotations

from typing import Any

import pytest

from roll.importers.command import imported_from
from roll.importers.convert import Imported, read

AT = "algorithm.rollout_correction"


def imported(**keys: Any) -> Imported:
    words = ["actor_rollout_ref.rollout.n=8", "data.train_batch_size=8"]
    return imported_from(read(None, [*words, *(f"{AT}.{name}={value}" for name, value in keys.items())]))


def kept(agg_type: str, low: float, high: float) -> dict[str, Any]:
    return {"enabled": True, "agg_type": agg_type, "ratio_low": low, "ratio_high": high}


@pytest.mark.parametrize(
    ("keys", "filters"),
    [
        ({"rollout_rs": "seq_mean_k1", "rollout_rs_threshold": "'0.99_1.01'"}, [kept("geometric", 0.99, 1.01)]),
        ({"rollout_rs": "token", "rollout_rs_threshold": 2}, [kept("token", 0.5, 2)]),
        (
            {"rollout_rs": "sequence", "rollout_rs_threshold": 4, "rollout_rs_threshold_lower": 0.1},
            [kept("sequence", 0.1, 4)],
        ),
        (
            {"rollout_rs": "'token_k1,seq_sum_k1'", "rollout_rs_threshold": "'0.5_2,0.1_10'"},
            [kept("token", 0.5, 2), kept("sequence", 0.1, 10)],
        ),
    ],
)
def test_ratios_out_of_their_bounds_are_filtered(keys: dict[str, Any], filters: list[dict[str, Any]]) -> None:
    assert imported(**keys).tree["train_infer_correction"]["filters"] == filters


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        ({"rollout_rs": "seq_max_k3", "rollout_rs_threshold": 2}, "there is no 'seq_max_k3' here"),
        ({"rollout_rs": "token_k1"}, "must have a bound for each of token_k1"),
        ({"rollout_rs": "token_k1", "rollout_rs_threshold": "much"}, "'much' is no bound"),
        ({"rollout_rs": "token_k1", "rollout_rs_threshold": "'0'"}, "'0' is no bound"),
    ],
)
def test_what_no_filter_can_say_is_told(keys: dict[str, Any], reason: str) -> None:
    found = imported(**keys)
    entries = {entry.key: (entry.outcome, entry.note) for entry in found.entries}
    assert entries[f"{AT}.rollout_rs"][0] == "changes the run" and reason in entries[f"{AT}.rollout_rs"][1]
    assert "train_infer_correction" not in found.tree


def test_a_bypass_takes_the_log_probs_of_the_engine() -> None:
    assert imported(bypass_mode="true", loss_type="ppo_clip").tree["force_disable_old_logprobs_recompute"] is True
    assert "force_disable_old_logprobs_recompute" not in imported(bypass_mode="false").tree
