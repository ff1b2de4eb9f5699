"""Distributions, cards and samples that a run records."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from roll.configs.sections.rollout import RecorderConfig
from roll.rl.records.recorder import QUANTILES, RecordLimits, distributions, spread_of
from roll.rl.records.step_records import tracked_samples
from roll.run.records import scorecard
from roll.run.records.scorecard import FILE, Forecast, Scorecard, comparison
from roll.types.texts import Turn
from tests.unit.rl.rollouts.test_filtered_step import group
from tests.unit.run.records.test_recorder import record


def test_a_spread_has_quantiles_and_a_histogram() -> None:
    values = np.array([0.0, 0.0, 0.0, 1.0])
    found = spread_of(values)
    assert found is not None
    assert found["counts"] == [3.0, *[0.0] * 18, 1.0]
    assert found["edges"] == pytest.approx([number / 20 for number in range(21)])
    assert dict(zip(QUANTILES, found["quantiles"], strict=True)) == pytest.approx(
        {0.0: 0, 0.05: 0, 0.25: 0, 0.5: 0, 0.75: 0.25, 0.95: 0.85, 1.0: 1}
    )
    assert spread_of(np.array([])) is None


def test_failed_attempts_count_by_their_causes() -> None:
    found = distributions([group(0, 1.0, 0.5, failed=1), group(1, 0.0, 0.0), group(2, 1.0, 1.0, failed=2)])
    assert found["num_attempts"] == 6
    assert found["failures"] == [{"cause": "crash", "count": 3, "first": "0"}]
    assert sum(found["rewards"]["counts"]) == sum(found["response_lengths"]["counts"]) == 3
    assert found["rewards"]["quantiles"][0] == 0.0 and found["rewards"]["quantiles"][-1] == 0.5
    assert found["response_lengths"]["quantiles"] == [2.0] * 7
    assert distributions([group(0, 1.0, failed=1)])["rewards"] is None


FORECAST = Forecast("2 cores", {"rollout": 3.0, "train_actor": 1.0}, 0.3, 10, 0.0, 0.0, 0.0, 0, "a test")


def step(rollout: float, train: float, validate: float = 0.0) -> dict[str, float]:
    return {"time/rollout_s": rollout, "time/train_actor_s": train, "time/validate_s": validate}


def test_a_step_counts_without_its_validation_and_the_card_leaves_out_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scorecard, "HISTORY", str(tmp_path / "cache" / "forecasts.jsonl"))
    card = Scorecard(FORECAST, tmp_path)
    assert card.add(step(7.0, 1.0, validate=100.0)) == {"goodput/forecast_ratio": 2.0}
    for seconds in (20.0, 7.4, 7.4, 7.4):
        card.add(step(seconds, 1.0))
    card.close()
    written = json.loads((tmp_path / FILE).read_text())
    assert (written["ratio"], written["steps"]) == (2.1, 3) and written["measured"]["rollout"] == 7.4
    assert comparison(tmp_path) == (2.1, "a step took 2.1 x the forecast of 4 s +-30%: rollout 2.5 x")
    assert json.loads((tmp_path / "cache" / "forecasts.jsonl").read_text()) == {"kind": "", "ratio": 2.1}


def test_hours_and_cost_are_of_a_step_where_steps_are_not_known_and_are_plain_numbers() -> None:
    of_run = replace(FORECAST, num_gpus=8, steps=1000, phases={"rollout": 99.7}, hour_cost=10.0)
    assert next(of_run.lines()).endswith("rollout 100 s; 1000 steps ~28 h, 222 GPU-hours")
    assert [*of_run.lines()][-1] == "Cost     ~2,216 (gpu_hour_cost: 10)"
    of_step = replace(of_run, steps=0, beside_s=30.0)
    assert next(of_step.lines()).endswith("rollout 100 s, 0.22 GPU-hours a step")
    assert [*of_step.lines()][-1] == "Cost     ~2.2 a step (gpu_hour_cost: 10)"


def test_without_a_forecast_nothing_is_measured_or_written(tmp_path: Path) -> None:
    card = Scorecard(None, tmp_path)
    assert card.add(step(1.0, 1.0)) == {}
    card.close()
    assert not list(tmp_path.iterdir()) and comparison(tmp_path) is None


def test_samples_are_tracked_turn_by_turn_every_so_many_steps() -> None:
    records = [record(group, response_text=f"{group}{attempt}" * 20) for group in (0, 1) for attempt in "ab"]
    found = tracked_samples(records, RecordLimits(num_characters=4), count=3)
    assert [(sample.group, sample.response[:4]) for sample in found] == [("0", "0a\n["), ("1", "1a\n["), ("0", "0b\n[")]
    turns = (Turn("a lake", "go left", "left", 0.0), Turn("ice", "go on", "left", 1.0))
    (sample,) = tracked_samples([record(0, turns=turns, ground_truth=None)], RecordLimits(), count=5)
    assert sample.response == "[sees] a lake\n[says] go left\n[sees] ice\n[says] go on"
    assert sample.ground_truth == ""
    keys = RecorderConfig(tracked_samples=4, tracked_steps=10)
    assert [keys.is_tracked(step, "train") for step in (9, 10, 11)] == [False, True, False]
    assert keys.is_tracked(9, "val") and keys.is_tracked(9, "val.hard")
    assert not RecorderConfig().is_tracked(10, "val")
