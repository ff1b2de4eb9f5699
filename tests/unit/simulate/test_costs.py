"""Costs: their arithmetic, their file, and what the metrics of a run say about them."""

import json
from pathlib import Path
from typing import Any

import pytest

from roll.errors import ConfigError
from roll.run.tracking.local import write_metrics
from roll.simulate.calibrate import fit_decode, fit_trainer, line_through, rows_of_run
from roll.simulate.setup import Costs, read_costs, write_costs
from tests.helpers.cases import cases


def test_steps_are_straight_between_points_and_tell_what_they_can() -> None:
    costs = Costs(decode_s=((1, 0.01), (3, 0.02), (5, 0.06)))
    assert [costs.decode_step_s(n) for n in (1, 2, 3, 4, 6)] == pytest.approx([0.01, 0.015, 0.02, 0.04, 0.08])
    assert Costs(decode_s=((2, 0.01),)).decode_step_s(9) == 0.01
    rows = [metrics(400 * n, 50) | {"rollout/running_groups": float(n > 1)} for n in range(1, 4)]
    with pytest.raises(ConfigError, match="--run: its rollouts ran ahead"):
        fit_decode(rows, num_engines=1)
    assert line_through([10, 10, 10.5], [2, 2, 2.1]) == (0.0, pytest.approx(0.2))
    assert line_through([1, 2, 3], [3, 5, 7]) == pytest.approx((1.0, 2.0))
    assert line_through([1, 2, 3], [1, 3, 5])[0] == 0.0


def test_a_file_gives_back_what_was_written(tmp_path: Path) -> None:
    costs = Costs(decode_s=((1, 0.5), (4, 0.75)), kv_tokens=1000, publish_s=0.25)
    write_costs(tmp_path / "new" / "costs.json", costs, {"from": "a test"})
    assert read_costs(tmp_path / "new" / "costs.json") == costs
    assert json.loads((tmp_path / "new" / "costs.json").read_text())["source"] == {"from": "a test"}
    write_costs(tmp_path / "costs.json", Costs(), {})
    assert read_costs(tmp_path / "costs.json") == Costs()
    with pytest.raises(ConfigError, match="0 steps of training are in its metrics.jsonl; at least 4 are needed"):
        rows_of_run(tmp_path)


@cases("given, said")
def test_a_file_that_is_no_calibration_is_refused(tmp_path: Path, given: Any, said: str) -> None:
    path = tmp_path / "costs.json"
    path.write_text(json.dumps(given))
    with pytest.raises(ConfigError, match=f"--calibration .*costs.json: .*{said}"):
        read_costs(path)


def metrics(tokens: int, longest: int) -> dict[str, float]:
    """Of a run that trains in .5 s + 1 ms a token, and decodes in 10 ms + 1 ms for each running answer."""
    sampled = tokens * 3 // 4
    return {
        "rollout/num_tokens": tokens,
        "rollout/response_length_mean": 30.0,
        "rollout/prompt_length_mean": 10.0,
        "rollout/response_length_max": longest,
        "time/rollout_s": 0.01 * longest + 0.001 * sampled / 2,
        "time/train_actor_s": 0.5 + 0.001 * tokens,
        "time/weight_sync_s": 0.2,
        "time/gather_s": 0.03,
        "time/other_s": 0.02,
        "time/score_s": 0.002 * tokens,
        "time/score/old_log_probs_s": 0.0012 * tokens,
        "time/score/ref_log_probs_s": 0.0008 * tokens,
    }


def test_costs_are_read_off_the_metrics_of_a_run(tmp_path: Path) -> None:
    """The first two steps warm up."""
    steps = [metrics(9999, 1), metrics(1, 9999), *(metrics(400 * n, 50 + 7 * (n % 3)) for n in range(1, 9))]
    write_metrics(tmp_path / "metrics.jsonl", enumerate(steps, 1))
    rows = rows_of_run(tmp_path)
    costs = fit_trainer(rows, train_devices=2)
    assert costs == pytest.approx(
        {
            "train_overhead_s": 0.5,
            "train_tokens_per_s": 500.0,
            "publish_s": 0.2,
            "driver_s": 0.05,
            "score_tokens_per_s": 500.0,
        }
    )
    (one, first), (most, last) = fit_decode(rows, num_engines=2)
    assert (one, first) == (1, pytest.approx(0.011)) and last == pytest.approx(0.01 + 0.001 * most)
