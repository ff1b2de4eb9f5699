"""The verdict on runs: on series that are made up here, one for each rule, and on metrics of real runs."""

import json
import logging
import math
import threading
from collections.abc import Mapping, Sequence
from http.client import InvalidURL
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.request import Request

import numpy as np
import pytest

from roll.run.health.history import History
from roll.run.health.rules import RULES
from roll.run.health.tracker import Alerts, HealthTracker
from roll.run.health.verdict import verdict
from roll.run.tracking.tracker import TrackedRun

NOISE = np.random.default_rng(0).normal(size=200)
HEALTHY = {
    "rollout/reward_mean": [0.2 + 0.01 * at + 0.03 * NOISE[at] for at in range(40)],
    "rollout/reward_min": [0.0] * 40,
    "rollout/reward_max": [1.0] * 40,
    "rollout/group_equal_rewards_fraction": [0.3] * 40,
    "rollout/truncated_fraction": [0.05] * 40,
    "rollout/response_length_mean": [30.0] * 40,
    "rollout/failed_fraction": [0.0] * 40,
    "actor/entropy_mean": [1.0 - 0.01 * at for at in range(40)],
    "actor/grad_norm": [0.5 + 0.1 * abs(NOISE[at]) for at in range(40)],
    "actor/clip_fraction": [0.01] * 40,
    "train_infer/log_prob_diff_mean": [0.01] * 40,
}
CONFIG = {
    "max_steps": 60,
    "response_length": 64,
    "actor_train": {"training_args": {"learning_rate": 1e-5}, "model_args": {"dtype": "bf16"}},
    "actor_infer": {"model_args": {"dtype": "bf16"}},
}


def run_of(changes: Mapping[str, Sequence[float]], base: Mapping[str, Sequence[float]] = HEALTHY) -> History:
    series = {**base, **changes}
    length = max(map(len, series.values()))
    rows = [(at + 1, {name: values[at] for name, values in series.items() if at < len(values)}) for at in range(length)]
    return History.of(rows, CONFIG)


FALLS = [0.6 - 0.014 * at for at in range(40)]
FLAT = [0.3 + 0.03 * NOISE[at] for at in range(40)]
PLANTED: dict[str, Mapping[str, Sequence[float]]] = {
    "not finite": {"actor/grad_norm": [0.5] * 30 + [math.nan] * 10},
    "zero gradient": {"actor/grad_norm": [0.5] * 30 + [0.0] * 10},
    "equal rewards": {"rollout/reward_mean": [0.0] * 40, "rollout/reward_max": [0.0] * 40},
    "collapsed": {"rollout/reward_mean": FALLS, "actor/entropy_mean": [1.0] * 20 + [0.05] * 20},
    "engine differs": {"train_infer/log_prob_diff_mean": [0.4] * 40},
    "answers cut": {"rollout/reward_mean": FLAT, "rollout/truncated_fraction": [0.6] * 40},
    "long ones lost": {"rollout/length_bias": [0.8] * 40},
    "longer only": {"rollout/reward_mean": FLAT, "rollout/response_length_mean": [30.0 + at for at in range(40)]},
    "entropy lost": {
        "rollout/reward_mean": FLAT,
        "rollout/group_equal_rewards_fraction": [0.3] * 30 + [0.55] * 10,
        "actor/entropy_mean": [1.0 * 0.9**at for at in range(40)],
    },
    "entropy grows": {"rollout/reward_mean": FLAT, "actor/entropy_mean": [1.0 + 0.05 * at for at in range(40)]},
    "no signal": {
        "rollout/reward_mean": [0.03 + 0.01 * NOISE[at] for at in range(40)],
        "rollout/group_equal_rewards_fraction": [0.9] * 40,
    },
    "one part pays": {"rollout/reward_format_mean": [0.2] * 40, "rollout/reward_answer_mean": [0.0] * 40},
    "wrong ones pay": {"rollout/success_mean": [0.2] * 15 + [0.0] * 25, "rollout/reward_length_mean": FALLS[::-1]},
    "pay differs": {"rollout/duplicate_reward_std_mean": [0.4] * 40, "rollout/reward_std": [0.5] * 40},
    "same responses": {"rollout/reward_mean": FLAT, "rollout/duplicate_responses_fraction": [0.9] * 40},
    "too easy": {"rollout/reward_mean": [0.98] * 40, "actor/grad_norm": [0.0] * 40},
    "few prompts": {"rollout/repeated_prompts_fraction": [0.75] * 40},
    "domain starves": {"rollout/reward_mean/maths": [0.0] * 40, "rollout/reward_mean/code": FALLS},
    "attempts fail": {"rollout/failed_fraction": [0.5] * 40, "rollout/length_bias": [0.8] * 40},
    "validation falls": {"val/reward_mean": [0.2, 0.5, 0.3]},
    "long warm-up": {"actor/learning_rate": [1e-8 * at for at in range(40)]},
    "much clipped": {"actor/clip_fraction": [0.5] * 40},
    "far away": {"actor/kl_loss": [0.1] * 30 + [3.0] * 10},
    "groups dropped": {"rollout/kept_groups_fraction": [0.1] * 40},
    "old rollouts": {"actor/masked_stale_fraction": [0.5] * 40},
    "useless critic": {"critic/explained_variance": [-0.5] * 40},
    "calls fail": {"agentic/malformed_call_fraction": [0.8] * 40},
    "never ends": {"env/lake/env_ended_mean": [0.0] * 40},
    "only costs": {
        "rollout/reward_mean": [-0.07, -0.04, -0.02] + [0.0] * 37,
        "rollout/reward_min": [-1.0] * 3 + [0.0] * 37,
        "rollout/reward_max": [0.0] * 40,
        "rollout/group_equal_rewards_fraction": [0.6, 0.7, 0.8] + [1.0] * 37,
        "actor/grad_norm": [0.4, 0.3, 0.2] + [0.0] * 37,
    },
    "prompts cut": {"rollout/prompt_length_mean": [16.0] * 40},
    "other reference": {"actor/kl_loss": [5.5, 5.0, 4.0] + [0.1] * 37, "actor/approx_kl": [0.0] * 40},
    "training earns less": {
        "rollout/reward_mean": [min(0.3, 0.02 * at) for at in range(40)],
        "rollout/group_equal_rewards_fraction": [0.5] * 40,
        "val/reward_mean": [0.05 * min(18, at) for at in range(40)],
    },
    "same rows": {"val/reward_mean": [0.3 + 0.01 * at for at in range(40)]},
    "memory grows": {"memory/actor_train_host_bytes": [1e9 * 1.02**at for at in range(80)]},
    "flat": {"rollout/reward_mean": FLAT},
}
ON_ROWS: dict[str, Mapping[str, Sequence[float]]] = {
    "learning": {"train/nll_mean": [2 - 0.02 * at + 0.05 * NOISE[at] for at in range(40)]},
    "loss rises": {"train/nll_mean": [2 + 0.1 * at for at in range(40)]},
    "forgets": {
        "train/loss": [0.7 - 0.01 * at for at in range(40)],
        "train/nll_chosen_mean": [0.5 * 1.1**at for at in range(40)],
    },
    "overfit": {"train/nll_mean": [2 - 0.04 * at for at in range(40)], "val/nll_mean": [2.0, 1.5, 1.7, 1.9]},
    "same teacher": {"train/divergence_mean": [0.0, 0.0002, 0.3] + [0.05] * 37},
    "exchanged": {"train/accuracy": [0.9] * 40, "val/accuracy": [0.5, 0.1], "val/loss": [0.7, 1.0, 2.0]},
    "chance": {"train/loss": [0.7 - 0.001 * at for at in range(60)], "train/accuracy": [0.5] * 60},
}


KEYS: dict[str, dict[str, Any]] = {
    "prompts cut": {"prompt_length": 16, "actor_train": {"data_args": {"truncation": "left"}}},
    "same rows": {role: {"data_args": {"file_name": ["a.jsonl"]}} for role in ("actor_train", "validation")},
}


@pytest.mark.parametrize("label", PLANTED)
def test_a_planted_fault_of_a_reward_run_has_its_label(label: str) -> None:
    run = run_of(PLANTED[label])
    run.config = CONFIG | KEYS.get(label, {})
    assert verdict(run).label == label


@pytest.mark.parametrize("label", ON_ROWS)
def test_a_run_on_rows_has_its_label(label: str) -> None:
    assert verdict(run_of(ON_ROWS[label], {})).label == label


def test_every_rule_has_a_planted_run() -> None:
    assert {rule.label for rule in RULES} <= {*PLANTED, *ON_ROWS}


def test_a_healthy_run_is_not_accused_at_any_of_its_steps() -> None:
    for length in range(1, 41):
        result = verdict(run_of({}, {name: values[:length] for name, values in HEALTHY.items()}))
        assert not result.symptoms and result.label in ("short", "learning"), (length, result)
    assert verdict(run_of({})).label == "learning"


def test_a_task_that_is_solved_is_no_fault_though_groups_have_no_signal_any_more() -> None:
    solved = {
        "rollout/reward_mean": [min(1.0, 0.1 * at) for at in range(40)],
        "rollout/group_equal_rewards_fraction": [min(1.0, 0.1 * at) for at in range(40)],
        "rollout/reward_min": [0.0] * 30 + [1.0] * 10,
        "actor/grad_norm": [0.5] * 30 + [0.0] * 10,
    }
    assert verdict(run_of(solved)).label == "solved"


@pytest.mark.parametrize("lowest", [0.0, -1.0])
def test_the_causes_of_no_signal_do_not_depend_on_where_rewards_begin(lowest: float) -> None:
    """A tenth of the answers is right, so the reward does find it."""
    given = {
        "rollout/reward_mean": [lowest + (1 - lowest) * (0.1 + 0.01 * NOISE[at]) for at in range(40)],
        "rollout/reward_min": [lowest] * 40,
        "rollout/group_equal_rewards_fraction": [0.7] * 40,
    }
    [found] = [each for each in verdict(run_of(given)).symptoms if each.label == "no signal"]
    assert found.diagnosis.causes[0].text == "the tasks are too hard for this model"


def test_causes_name_the_key_and_a_value_for_it() -> None:
    lines = verdict(run_of(PLANTED["collapsed"])).lines()
    assert any("actor_train.training_args.learning_rate=1e-06" in line for line in lines)
    assert any("response_length=128" in line for line in verdict(run_of(PLANTED["answers cut"])).lines())


def test_the_interval_of_a_trend_holds_the_slope_of_noise_as_often_as_it_says() -> None:
    """Of series without a trend one in twenty seems to have one."""
    draw = np.random.default_rng(1)
    seen = 0
    for _ in range(400):
        trend = History.of(((at, {"x": value}) for at, value in enumerate(draw.normal(size=50))), {}).trend("x")
        assert trend is not None
        seen += trend.rises or trend.falls
    assert 8 <= seen <= 36


RECORDED: dict[str, dict[str, Any]] = json.loads((Path(__file__).parent / "recorded.json").read_text(encoding="utf-8"))
"""Metrics of real runs of tiny models and of SmolLM2, most with a planted fault; None: not measured in that step."""


@pytest.mark.parametrize("name", RECORDED)
def test_a_recorded_run_has_its_label_and_the_planted_cause_is_the_first(name: str) -> None:
    run = RECORDED[name]
    length = max(map(len, run["metrics"].values()))
    rows = [
        (step, {metric: values[step] for metric, values in run["metrics"].items() if values[step] is not None})
        for step in range(length)
    ]
    result = verdict(History.of(rows, run["config"]))
    assert result.label == run["label"]
    assert bool(result.symptoms) == bool(run["cause"])
    if run["cause"]:
        assert result.symptoms[0].diagnosis.causes[0].key == run["cause"]


ALL_EQUAL = {"rollout/group_equal_rewards_fraction": [1.0] * 40, "actor/grad_norm": [0.0] * 40}
NO_GOAL = {"rollout/reward_mean": [0.0] * 40, "rollout/reward_max": [0.0] * 40, "env/lake/env_ended_mean": [0.01] * 40}


@pytest.mark.parametrize(
    ("planted", "keys", "first"),
    [
        (ALL_EQUAL | {"rollout/reward_mean": FLAT}, {"actor_infer": {"generating_args": {"top_k": 1}}}, "top_k"),
        (ALL_EQUAL | {"rollout/reward_mean": FLAT}, {"rollout_batch_size": 1}, "rollout_batch_size"),
        (PLANTED["answers cut"], {"actor_infer": {"generating_args": {"ignore_eos": True}}}, "ignore_eos"),
        (
            {"rollout/truncated_fraction": [1.0] * 40},
            {"actor_infer": {"generating_args": {"ignore_eos": True}}},
            "ignore_eos",
        ),
        ({"rollout/failed_fraction": [0.002 * at for at in range(40)]}, {}, "rewards"),
        (PLANTED["much clipped"], {"pg_clip": 1e-5}, "pg_clip"),
        (PLANTED["much clipped"], {"pg_clip": 3e-4, "pg_variant": "gspo"}, "learning_rate"),
        (PLANTED["useless critic"], {"critic": {"training_args": {"learning_rate": 1e-9}}}, "critic.training_args"),
        (NO_GOAL | {"env/lake/action_is_valid_mean": [0.99] * 40}, {"custom_envs": {"lake": {}}}, "lake.max_steps"),
        (NO_GOAL | {"env/lake/action_is_valid_mean": [0.0] * 40}, {"custom_envs": {"lake": {}}}, "max_tokens_per_step"),
        (
            {"rollout/staleness_mean": [10.0] * 40, "actor/is_weight_clip_fraction": [0.1] * 40},
            {},
            "async_generation_ratio",
        ),
    ],
)
def test_what_is_odd_in_the_configuration_or_seen_in_metrics_is_suspected_first(
    planted: Mapping[str, Sequence[float]], keys: dict[str, Any], first: str
) -> None:
    run = run_of(planted)
    run.config = CONFIG | keys
    assert first in verdict(run).symptoms[0].diagnosis.causes[0].key


def test_the_entropy_of_the_few_rows_that_are_computed_is_no_sign_of_a_collapse() -> None:
    poor = {"rollout/reward_mean": [0.0] * 39 + [0.01], "actor/entropy_mean": [0.2, 0.7, 0.3, 1.2] * 10}
    assert verdict(run_of(poor)).label == "collapsed"
    assert verdict(run_of({**poor, "actor/skipped_fraction": [0.99] * 40})).label != "collapsed"


def test_a_number_that_is_finite_again_is_no_fault_and_a_noisy_loss_does_not_rise() -> None:
    assert verdict(run_of({"actor/grad_norm": [math.nan] + [0.5] * 39})).label == "learning"
    for seed in range(20):
        noise = np.random.default_rng(seed).normal(scale=0.25, size=60)
        for length in range(1, 61):
            loss = [float(max(0.1, 1.2 - 0.002 * at + noise[at])) for at in range(length)]
            assert "loss rises" not in verdict(run_of({"train/nll_mean": loss}, {})).label, (seed, length)


def test_a_cause_that_holds_already_is_not_named() -> None:
    run = run_of(PLANTED["much clipped"])
    run.config = CONFIG | {"ppo_epochs": 1, "async_generation_ratio": 0}
    (symptom,) = verdict(run).symptoms
    assert [cause.key for cause in symptom.diagnosis.causes] == ["actor_train.training_args.learning_rate"]


def test_a_tracker_says_once_that_a_rule_begins_and_once_that_it_ends(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tracker = HealthTracker(TrackedRun("a", tmp_path, CONFIG))
    gaps = [0.01] * 10 + [0.5] * 10 + [0.01] * 10
    with caplog.at_level(logging.INFO):
        for step, gap in enumerate(gaps, 1):
            tracker.log(step, {"train_infer/log_prob_diff_mean": gap})
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 2, told
    assert told[0].startswith("health: step 11: engine differs: engine and trainer differ by 0.11 nats")
    assert told[1] == "health: step 25: no longer engine differs"


def test_a_run_without_any_gradient_has_not_collapsed_and_its_form_is_suspected_first() -> None:
    entropies = {"actor/entropy_mean": [0.6] * 5 + [1.9] * 35, "actor/grad_norm": [0.0] * 40}
    nothing = {"rollout/reward_mean": [0.0] * 40, "rollout/reward_max": [0.0] * 40}
    result = verdict(run_of({**entropies, **nothing, "rollout/answer_found_mean": [0.0] * 40}))
    assert result.label == "equal rewards"
    assert "no response has the form" in result.symptoms[0].diagnosis.causes[0].text


def test_a_rate_that_never_comes_to_its_peak_is_a_long_warm_up() -> None:
    rates = {"rollout/reward_mean": FLAT, "actor/learning_rate": [1e-8 * at for at in range(40)]}
    (symptom,) = verdict(run_of(rates)).symptoms
    assert symptom.diagnosis.causes[0].key == "actor_train.training_args.warmup_steps"


def test_a_webhook_gets_what_begins_and_the_end_of_the_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    texts: list[str] = []

    class Hook(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            texts.append(json.loads(self.rfile.read(int(self.headers["Content-Length"])))["text"])
            self.send_response(204)
            self.end_headers()

    with ThreadingHTTPServer(("127.0.0.1", 0), Hook) as server:
        threading.Thread(target=server.serve_forever).start()
        tracker = HealthTracker(TrackedRun("sort", tmp_path, CONFIG), f"http://127.0.0.1:{server.server_port}/T0/B0")
        for step in range(1, 8):
            tracker.log(step, {"train_infer/log_prob_diff_mean": 0.5})
        tracker.close(failed=True)
        server.shutdown()
    begins, ends = texts
    assert begins.startswith("sort: step 5: engine differs: engine and trainer differ by 0.5 nats")
    assert ends == "sort: failed after step 7: engine differs"
    HealthTracker(TrackedRun("sort", tmp_path, CONFIG), "http://127.0.0.1:1/T0/B0").close()
    assert "alert_url: an alert was not sent" in caplog.text


def test_a_slow_webhook_does_not_hold_the_end_and_its_address_stays_out_of_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("roll.run.health.tracker._CLOSE_S", 0.2)
    called, answer, calls = threading.Event(), threading.Event(), []

    def slow(request: Request, timeout: float) -> None:
        calls.append(request)
        called.set()
        answer.wait()
        raise InvalidURL(request.full_url)

    monkeypatch.setattr("roll.run.health.tracker.urlopen", slow)
    alerts = Alerts("sort", "https://hooks/SECRET")
    alerts.send("one")
    alerts.send("two")
    called.wait()
    alerts.close()
    (thread,) = [each for each in threading.enumerate() if each.name == "roll_alerts"]
    answer.set()
    thread.join()
    slowly, failed = [record.getMessage() for record in caplog.records]
    assert "the last alerts may not be sent" in slowly and len(calls) == 1
    assert failed == "alert_url: an alert was not sent: InvalidURL"


def test_a_critic_whose_loss_is_far_above_the_returns_learns_too_fast() -> None:
    values = {"critic/value_loss": [0.04] * 36 + [20.0, 80.0, 60.0, 40.0], "critic/return_square_mean": [0.5] * 40}
    result = verdict(run_of(values))
    assert result.label == "useless critic" and "learns too fast" in result.symptoms[0].diagnosis.causes[0].text
    assert verdict(run_of({**values, "critic/value_loss": [80.0, 60.0, 40.0] + [0.1] * 37})).label == "learning"


def test_right_responses_that_are_rare_and_noisy_are_not_said_to_fall() -> None:
    for seed in range(20):
        right = np.random.default_rng(seed).binomial(16, 0.05, size=40) / 16
        assert verdict(run_of({"rollout/success_mean": list(map(float, right))})).label == "learning", seed


def test_answers_of_a_few_tokens_may_repeat() -> None:
    letters = {**PLANTED["same responses"], "rollout/response_length_mean": [2.0] * 40}
    assert verdict(run_of(letters)).label == "flat"
