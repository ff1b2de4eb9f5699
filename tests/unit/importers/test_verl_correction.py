"""verl's rollout_correction becomes train_infer_correction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from roll.importers.command import imported_from
from roll.importers.convert import Imported, read
from tests.helpers.cases import cases
from tests.unit.importers.test_import import entry

AT = "algorithm.rollout_correction"


def imported(**keys: Any) -> Imported:
    words = ["actor_rollout_ref.rollout.n=8", "data.train_batch_size=8"]
    return imported_from(read(None, [*words, *(f"{AT}.{name}={value}" for name, value in keys.items())]))


def kept(agg_type: str, low: float, high: float) -> dict[str, Any]:
    return {"enabled": True, "agg_type": agg_type, "ratio_low": low, "ratio_high": high}


@cases("keys, filters")
def test_ratios_out_of_their_bounds_are_filtered(keys: dict[str, Any], filters: list[dict[str, Any]]) -> None:
    assert imported(**keys).tree["train_infer_correction"]["filters"] == filters


@cases("keys, reason")
def test_what_no_filter_can_say_is_told(keys: dict[str, Any], reason: str) -> None:
    found = imported(**keys)
    entries = {entry.key: (entry.outcome, entry.note) for entry in found.entries}
    assert entries[f"{AT}.rollout_rs"][0] == "changes the run" and reason in entries[f"{AT}.rollout_rs"][1]
    assert "train_infer_correction" not in found.tree


def test_a_bypass_takes_the_log_probs_of_the_engine() -> None:
    assert imported(bypass_mode="true", loss_type="ppo_clip").tree["force_disable_old_logprobs_recompute"] is True
    assert "force_disable_old_logprobs_recompute" not in imported(bypass_mode="false").tree


@cases("words")
def test_importance_weights_of_the_engine_come_in_under_each_name_that_verl_gave_them(words: Sequence[str]) -> None:
    given = ["algorithm.adv_estimator=grpo", "actor_rollout_ref.rollout.n=8", *words]
    found = imported_from(read(None, given))
    weight = found.tree["train_infer_correction"]["is_weight"]
    assert weight == {"enabled": True, "weight_type": "token", "upper_bound": 3}
    assert {entry(found, word.partition("=")[0])[0] for word in words} == {"mapped"}
