"""Rewards of several parts, and rewards that take a batch."""

from pathlib import Path
from typing import Any

import pytest

from roll.pipeline.rlvr.rlvr_config import RLVRConfig
from roll.pipeline.rlvr.row_operators import data_domains
from roll.rewards.base import RewardInput, RewardOutcome
from roll.rewards.config import RewardConfig, RewardPart
from roll.rewards.table import sharing_of
from roll.rewards.worker import RewardWorker
from tests.helpers.cases import cases
from tests.helpers.rewards import preflight

USER = "user_rewards"
OVERLONG = {"reward": "overlong", "reward_args": {"max_tokens": 100, "cache_tokens": 20}}


@pytest.fixture(autouse=True)
def user_module(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))


def ask(settings: dict[str, Any], *texts: str, tokens: int = 0) -> list[RewardOutcome | None]:
    worker = RewardWorker("math", RewardConfig(**settings))
    return worker.score([RewardInput("", text, "1", num_response_tokens=tokens) for text in texts])


def one(settings: dict[str, Any], text: str = "1", tokens: int = 0) -> RewardOutcome:
    (outcome,) = ask(settings, text, tokens=tokens)
    assert outcome is not None
    return outcome


@pytest.mark.parametrize(
    ("settings", "text", "tokens", "score", "parts"),
    [
        ({"reward": "exact_match", "reward_manager_config": [OVERLONG]}, "1", 90, 0.5, (1, -0.5)),
        ({"reward": "exact_match", "reward_manager_config": [{**OVERLONG, "weight": 0.2}]}, "1", 90, 0.9, (1, -0.1)),
        ({"reward": "exact_match", "reward_manager_config": [{**OVERLONG, "weight": 0.2}]}, "2", 200, -0.2, (0, -0.2)),
        ({"reward": "exact_match", "reward_manager_config": [OVERLONG]}, "2", 10, 0, (0, 0)),
        ({"reward": "exact_match", "reward_manager_config": [{**OVERLONG, "weight": 0}]}, "1", 90, 1, (1, 0)),
    ],
)
def test_a_chain_is_the_weighted_sum_and_reports_what_each_part_adds(
    settings: dict[str, Any], text: str, tokens: int, score: float, parts: tuple[float, float]
) -> None:
    outcome = one(settings, text, tokens)
    assert outcome.failure is None and outcome.score == pytest.approx(score)
    reported = outcome.metrics["reward_exact_match"], outcome.metrics["reward_overlong"]
    assert reported == pytest.approx(parts) and sum(reported) == pytest.approx(outcome.score)


@pytest.mark.parametrize(("text", "success"), [("1", 1), ("2", 0)])
def test_a_penalty_does_not_make_a_right_answer_a_wrong_one(text: str, success: float) -> None:
    outcome = one({"reward": "exact_match", "reward_manager_config": [OVERLONG]}, text, tokens=100)
    assert outcome.score == success - 1 and outcome.metrics["success"] == success


def test_parts_are_weighted_and_the_main_one_keeps_its_metrics() -> None:
    parts = [{"reward": "regex", "reward_args": {"pattern": "b+"}}, {"reward": f"{USER}:picky", "name": "again"}]
    outcome = one({"reward": f"{USER}:picky", "reward_manager_config": parts}, "a")
    metrics = {"success": 1, "tries": 3, "reward_picky": 0.5, "reward_regex": 0, "reward_again": 0.5}
    assert outcome.metrics == metrics | {"again_success": 1, "again_tries": 3}
    assert outcome.extra == {"seen": "a", "again_seen": "a"}
    parts = [{"reward": "regex", "reward_args": {"pattern": "a"}, "weight": 3}, OVERLONG]
    outcome = one({"reward_manager_config": parts}, "a", tokens=100)
    assert outcome.score == 2 and outcome.metrics == {"reward_regex": 3, "reward_overlong": -1}
    alone = {"reward_manager_config": [{"reward": "regex", "reward_args": {"pattern": "a"}, "weight": 0.5}]}
    assert one(alone, "a").score == 0.5
    settings = {"reward": "exact_match", "response_length_penalty_coef": 0.5}
    assert one(settings, tokens=250).score == 1 - 0.5 * 0.25
    assert one(settings, tokens=250).metrics["reward_short_response"] == -0.125
    assert one(settings, tokens=400).score == 1
    assert "reward_short_response" not in one({"reward": "exact_match"}, tokens=250).metrics
    assert one({"reward": "exact_match"}).metrics == {"answer_found": 1.0}


def first_line(outcome: RewardOutcome) -> str:
    """The cause; the lines of code that led to it are below."""
    return (outcome.failure or "").partition("\n")[0]


def test_a_part_that_fails_fails_its_answer_alone() -> None:
    broken = {"reward": f"{USER}:by_name"}
    outcome = one({"reward": "exact_match", "reward_manager_config": [broken]}, "nan")
    assert first_line(outcome) == "ValueError: the part by_name returned nan, not a finite number"
    outcome = one({"reward": "exact_match", "reward_manager_config": [broken]}, "raise")
    assert first_line(outcome) == "KeyError: 'no such thing'"
    batched = {"reward": f"{USER}:batched"}
    assert [o and o.score for o in ask(batched, "a", "b", "c")] == [3, 3, 3]
    assert [o and o.score for o in ask({**batched, "reward_args": {"scale": 2}}, "a", "b")] == [4, 4]
    assert [o and o.score for o in ask(batched, "array", "b")] == [2, 2]
    outcomes = ask({"reward": f"{USER}:Batched", "reward_args": {"bonus": 0.5}}, "a", "bcd")
    assert [(o.score, o.metrics) for o in outcomes if o] == [(2.5, {"length": 1}), (2.5, {"length": 3})]
    outcomes = ask({"reward": f"{USER}:batched", "format_pattern": "[a-z]+"}, "a", "1", "b")
    assert [o and o.score for o in outcomes] == [2, 0, 2]
    assert [o and o.score for o in ask({"reward": f"{USER}:batched", "format_pattern": "[a-z]+"}, "1", "2")] == [0, 0]
    outcomes = ask({"reward": f"{USER}:batched"}, "a", "nan", "b")
    assert [o and o.failure for o in outcomes] == [None, "returned nan, not a finite number", None]


@pytest.mark.parametrize("other", ["waits", "Batched", "length"])
def test_parts_of_every_kind_add_up(other: str) -> None:
    """An async part, one that takes a batch, and plain ones: whatever the chain is, each answer gets its own sum."""
    parts = [{"reward": f"{USER}:{other}", "name": "other", "weight": 10}]
    outcomes = ask({"reward": "exact_match", "reward_manager_config": parts}, "1", "22", "1")
    expected = {"waits": [3.5, 2.5, 3.5], "Batched": [31, 30, 31], "length": [11, 20, 11]}[other]
    assert [o and o.score for o in outcomes] == expected
    mixed = [*parts, {"reward": f"{USER}:waits"}, {"reward": f"{USER}:batched", "weight": 0.5}]
    outcomes = ask({"reward_manager_config": mixed}, "1") if other != "waits" else []
    assert [o and o.score for o in outcomes] == ([] if other == "waits" else [10.75])


@cases("parts, sharing")
def test_how_the_answers_of_a_group_are_judged_follows_from_the_parts(parts: list[str], sharing: str) -> None:
    names = [part if part == "regex" else f"{USER}:{part}" for part in parts]
    assert sharing_of(RewardConfig(reward_manager_config=tuple(RewardPart(reward=name) for name in names))) == sharing


@cases("text, reason")
def test_a_batch_that_fails_is_asked_for_again_one_by_one_and_who_did_it_fails(text: str, reason: str) -> None:
    batched = {"reward": f"{USER}:batched", "timeout_s": 0.5}
    assert ask(batched, "a", text, "b") == [None, None, None]
    assert first_line(one(batched, text)) == reason
    assert one(batched, "a").score == 1


@cases("settings, message")
def test_preflight_names_the_part_that_is_wrong(settings: dict[str, Any], message: str) -> None:
    (problem,) = preflight(RLVRConfig.model_construct(rewards={"math": RewardConfig(**settings)}))
    with pytest.raises(AssertionError, match=f"^rewards.math.{message}"):
        raise AssertionError(problem)


def test_reward_types_go_to_the_parts_that_know_them() -> None:
    assert one({"reward": f"{USER}:typed", "reward_type": "soft"}).score == 0.5
    assert one({"reward": f"{USER}:typed"}).score == 1
    parts = (RewardPart(reward="exact_match"), RewardPart(reward="overlong"))
    rewards = {"a": RewardConfig(reward="regex", reward_manager_config=parts)}
    (domain,) = data_domains(RLVRConfig.model_construct(rewards=rewards))
    assert domain.required == ("ground_truth",) and not domain.some_ground_truth
