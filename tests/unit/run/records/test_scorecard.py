"""The scorecard: ratio of each step, the file of a run, and the sentence about it."""

import json
from pathlib import Path

import pytest

from roll.run.records import scorecard
from roll.run.records.scorecard import FILE, Forecast, Scorecard, comparison

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
    assert json.loads((tmp_path / "cache" / "forecasts.jsonl").read_text()) == {"machine": "2 cores", "ratio": 2.1}


def test_without_a_forecast_nothing_is_measured_or_written(tmp_path: Path) -> None:
    card = Scorecard(None, tmp_path)
    assert card.add(step(1.0, 1.0)) == {}
    card.close()
    assert not list(tmp_path.iterdir()) and comparison(tmp_path) is None
