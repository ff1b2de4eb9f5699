"""The warnings that rollout engine and trainer disagree, and that nothing is learnt any more."""

import logging
import math
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from roll.errors import StrategyError
from roll.rl.alarms import GAP_MAX, NO_SIGNAL, PROBE_GAP, CollapseAlarm, ExactAlarm, GapAlarm, LengthAlarm


def test_it_warns_when_the_difference_rises_above_the_threshold_and_not_again_before_it_fell(
    caplog: pytest.LogCaptureFixture,
) -> None:
    alarm = GapAlarm(0.05)
    warned = []
    with caplog.at_level(logging.WARNING):
        for difference in (0.01, 0.05, 0.06, 0.2, 0.04, 0.3):
            caplog.clear()
            alarm.check(difference)
            warned.append(len(caplog.records))
    assert warned == [0, 0, 1, 0, 0, 1]
    assert "log_prob_diff_mean is 0.3, above log_prob_diff_warning: 0.05" in caplog.text


@pytest.mark.parametrize(
    ("keeps_kv", "cause"), [(False, "compare their dtypes"), (True, "over keys and values of older weights")]
)
def test_where_old_keys_and_values_are_kept_the_warning_says_that_they_are_the_cause(
    keeps_kv: bool, cause: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        GapAlarm(0.05, keeps_kv).check(0.07)
    assert cause in caplog.text and caplog.text.count("older weights") == keeps_kv


@pytest.mark.parametrize("name", [GAP_MAX, PROBE_GAP])
@pytest.mark.parametrize(
    ("runs_ahead", "engine_version", "stops"), [(False, 3, True), (True, 2, True), (False, 2, False)]
)
def test_exact_runs_end_with_the_first_number_that_differs(
    name: str, runs_ahead: bool, engine_version: int, stops: bool
) -> None:
    """Without rollouts that run ahead, and with engines that are a step behind, all tokens are of other weights."""
    alarm, at = ExactAlarm(runs_ahead), SimpleNamespace(step=3, engine_version=engine_version)
    alarm.before_publish(at, {name: 0.0})  # type: ignore[arg-type]
    alarm.before_publish(at, {})  # type: ignore[arg-type]
    for wrong in (1e-9, math.nan):
        with pytest.raises(StrategyError, match=f"exact_log_probs: {name} is .* in step 4") if stops else nullcontext():
            alarm.before_publish(at, {name: wrong})  # type: ignore[arg-type]


GOOD = {"rollout/reward_max": 1.0, "rollout/reward_min": 0.0, "actor/grad_norm": 0.5}
ZERO = {"rollout/reward_max": 0.0, "rollout/reward_min": 0.0, "actor/grad_norm": 0.0}


def looked_at(alarm: CollapseAlarm, steps: list[dict[str, float]]) -> list[float]:
    return [alarm.check(step, metrics)[NO_SIGNAL] for step, metrics in enumerate(steps, 1)]


def test_rewards_of_zero_say_nothing_where_an_expert_teaches_and_a_gradient_of_zero_does() -> None:
    expert = ZERO | {"actor/expert_weight": 0.1}
    assert looked_at(CollapseAlarm(1), [expert | {"actor/grad_norm": 0.1}, expert]) == [0, 1]


def test_rewards_and_gradients_at_zero_are_said_once_after_n_steps_and_again_when_they_come_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    counts = looked_at(CollapseAlarm(3), [GOOD, *[ZERO] * 5, GOOD, *[ZERO] * 3])
    assert counts == [0, 1, 2, 3, 4, 5, 0, 1, 2, 3]
    assert len(caplog.messages) == 2
    assert caplog.messages[0].startswith(
        "collapse: all rewards and the policy's gradient are exactly 0 over the last 3 steps (collapse_warning_steps)"
    )
    assert "sample rollouts of step 4" in caplog.messages[0]


@pytest.mark.parametrize(
    "metrics, cause",
    [
        (GOOD | {"actor/grad_norm": 0.0}, "the policy's gradient is exactly 0"),
        (ZERO | {"actor/grad_norm": 0.1}, "all rewards are exactly 0"),
        ({"actor/skipped_updates": 1.0}, "the policy's gradient is exactly 0"),
        ({"rollout/reward_max": 1.0, "rollout/reward_min": 1.0, "actor/num_updates": 0.0}, "the policy's gradient is"),
        (GOOD | {"rollout/reward_min": 0.0}, ""),
        (ZERO | {"rollout/reward_min": -1.0, "actor/grad_norm": 1e-12}, ""),
        ({}, ""),
    ],
)
def test_either_of_them_is_enough_and_small_numbers_are_none(
    metrics: dict[str, float], cause: str, caplog: pytest.LogCaptureFixture
) -> None:
    looked_at(CollapseAlarm(2), [metrics] * 2)
    assert [cause in message for message in caplog.messages] == ([True] if cause else [])


def test_zero_steps_switch_it_off(caplog: pytest.LogCaptureFixture) -> None:
    assert looked_at(CollapseAlarm(0), [ZERO] * 30)[-1] == 30
    assert caplog.messages == []


def test_numbers_that_are_none_are_said_when_they_appear(caplog: pytest.LogCaptureFixture) -> None:
    nan, both = GOOD | {"actor/pg_loss": math.nan}, GOOD | {"actor/pg_loss": math.nan, "critic/value_loss": math.inf}
    looked_at(CollapseAlarm(10), [GOOD, nan, nan, both, GOOD, nan])
    assert [message.split(". ")[0] for message in caplog.messages] == [
        "collapse: not finite at step 2: actor/pg_loss = nan",
        "collapse: not finite at step 4: critic/value_loss = inf",
        "collapse: not finite at step 6: actor/pg_loss = nan",
    ]


def test_answers_that_are_too_short_are_said_once_with_what_would_help(caplog: pytest.LogCaptureFixture) -> None:
    alarm, other = LengthAlarm(drops_unfinished=True), LengthAlarm(drops_unfinished=False)
    short = {"rollout/length_bias": 0.72, "rollout/filter_length_bias": 0.95}
    for alike in (other, alarm, alarm):
        alike.check(short)
    (said,) = caplog.messages
    assert said.startswith("rollout/length_bias is 0.72") and "unfinished_groups: carry" in said
    caplog.clear()
    for _ in range(2):
        alarm.check({"rollout/length_bias": 0.72, "rollout/filter_length_bias": 0.5})
    (said,) = caplog.messages
    assert said.startswith("rollout/filter_length_bias is 0.50") and "query_filter_config" in said
    LengthAlarm(drops_unfinished=True).check({"rollout/length_bias": 0.9})
    assert len(caplog.messages) == 1


def test_many_cut_responses_are_said_once_with_their_limit(caplog: pytest.LogCaptureFixture) -> None:
    alarm = LengthAlarm(drops_unfinished=False, limit="response_length: 16")
    for cut in (0.3, 0.64, 0.9):
        alarm.check({"rollout/truncated_fraction": cut})
    (said,) = caplog.messages
    assert said.startswith("rollout/truncated_fraction is 0.64") and "cut at response_length: 16" in said
