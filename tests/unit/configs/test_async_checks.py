"""What is refused of a run whose rollouts run ahead, with the numbers, and what the plan says of it."""

from typing import Any

import pytest

from roll.configs.load.known_keys import apply_aliases
from roll.configs.plan.batch_plan import RolloutBounds, build_plan
from roll.configs.plan.describe import batch_rows, describe
from roll.pipeline.rlvr.rlvr_config import RLVRConfig
from tests.helpers.cases import cases
from tests.helpers.configs import config, problems, tree, warnings_of

AHEAD = "async_generation_ratio"
MORE = "max_additional_running_prompts"
EVERY = "actor_train.model_update_frequency"


@pytest.mark.parametrize(
    ("changes", "bounds"),
    [
        ({}, RolloutBounds(32)),
        ({EVERY: 3}, RolloutBounds(32)),  # a step has its own groups, however old the weights
        ({AHEAD: 1}, RolloutBounds(32, 32, 1, 1)),
        ({AHEAD: 0.1}, RolloutBounds(32, 4, 1, 1)),
        ({AHEAD: 0.1, "rollout_batch_size": 30}, RolloutBounds(30, 3, 1, 1)),  # 0.1 x 30 is more than 3 in floats
        ({AHEAD: 1.5, EVERY: 2}, RolloutBounds(32, 48, 2, 3)),
        ({AHEAD: 1, "max_staleness": 2}, RolloutBounds(32, 32, 1, 2)),
        ({AHEAD: 1, "unfinished_grace_s": 3}, RolloutBounds(32, 32, 1, 1, grace_s=3)),
        ({AHEAD: 0.25, "unfinished_groups": "drop"}, RolloutBounds(32, 8, unfinished="drop")),
        ({AHEAD: 0.5, "unfinished_groups": "defer", EVERY: 2}, RolloutBounds(32, 16, unfinished="defer")),
        ({"is_use_additional_prompts": True, MORE: 5}, RolloutBounds(32, additional=5)),
        ({MORE: 5}, RolloutBounds(32)),
    ],
)
def test_bounds_follow_from_the_keys(changes: dict[str, Any], bounds: RolloutBounds) -> None:
    assert build_plan(config(changes)).bounds == bounds


@pytest.mark.parametrize("interval", [1, 2, 3, 7])
@pytest.mark.parametrize("ratio", [0.01, 0.25, 0.5, 1, 1.1, 2.5])
def test_the_default_bound_can_always_be_kept(interval: int, ratio: float) -> None:
    for num_groups in (1, 3, 32, 100):
        given = {AHEAD: ratio, EVERY: interval, "rollout_batch_size": num_groups}
        bounds = build_plan(config(given)).bounds
        assert bounds.ahead >= ratio * num_groups - 1e-6
        assert bounds.capacity <= (bounds.max_staleness + 1) * num_groups


@cases("changes, text")
def test_what_cannot_work_is_refused_with_the_numbers(changes: dict[str, Any], text: str) -> None:
    assert problems(changes) == [text]


def test_a_judge_leaves_an_engine_where_rollouts_run_ahead() -> None:
    judge = {
        "reward": "llm_judge",
        "judge_model_type": "inference",
        "model_args": {"model_name_or_path": "org/judge"},
        "strategy_args": {"strategy_name": "vllm"},
    }
    said = "share device 2: they take turns there, and while the judge scores the responses of a step, none of "
    for ratio, at, engines, changes, refused in (
        (1, 2, [2], {}, "1 engine would be left to sample."),
        (0, 2, [2], {}, ""),
        (1, 3, [2], {}, ""),
        (1, 2, [2, 3], {}, ""),
        (1, 2, [2, 3], {"partial_gpu_mode": False}, "2 engines would be left to sample (partial_gpu_mode: false)."),
        (1, 2, [2, 3], {"actor_infer.num_gpus_per_worker": 2}, "1 engine would be left to sample."),
    ):
        given = {"rewards.math": judge | {"device_mapping": [at]}, AHEAD: ratio, **changes}
        given |= {"actor_infer.device_mapping": engines}
        assert [text for text in problems(given) if said in text] == [
            text for text in problems(given) if refused and said + refused in text
        ]
        assert any(said in text for text in problems(given)) is bool(refused)


OVERLAP = {AHEAD: 0.5, "actor_infer.device_mapping": [0, 1, 2, 3]}  # the trainer has 0 and 1


def test_the_plan_says_which_engines_go_on_while_others_have_their_turns() -> None:
    def said(changes: dict[str, Any]) -> list[str]:
        made = config(OVERLAP | changes)
        plan = build_plan(made)
        return [line.strip() for line in describe(made, plan, []).splitlines() if "while actor_train works" in line]

    leave = "while actor_train works, all engines of actor_infer leave, and continue their responses afterwards"
    go_on = "continue on 2..3, and take over the responses of those that leave"
    assert said({}) == [f"while actor_train works, 2 of 4 engines of actor_infer {go_on}"]
    assert said({"actor_infer.num_gpus_per_worker": 2}) == [
        f"while actor_train works, 1 of 2 engines of actor_infer {go_on}"
    ]
    assert said({"actor_infer.num_gpus_per_worker": 4}) == [leave]
    assert said({"partial_gpu_mode": False}) == [leave]
    assert said({AHEAD: 0}) == []


def test_engines_that_run_ahead_may_share_devices_and_need_no_warning() -> None:
    shared = {AHEAD: 0.5, "actor_infer.device_mapping": [0, 1]}
    assert problems(shared) == []
    assert build_plan(config(shared)).background == {"actor_infer"}
    assert build_plan(config(shared | {AHEAD: 0})).background == frozenset()
    assert warnings_of(config({AHEAD: 1})) == warnings_of(config())


def test_the_plan_says_how_many_groups_are_under_way_and_how_old_they_grow() -> None:
    given = config({AHEAD: 0.5, EVERY: 2})
    rows = [row[1] for row in batch_rows(given, build_plan(given))]
    assert "at most 80 groups in flight: those of 2 steps and 16 more (async_generation_ratio: 0.5)" in rows
    assert "no token is more than 2 steps old (max_staleness)" in rows
    assert "loss weighted by p / p_engine per token, at most 1.2 (train_infer_correction.is_weight)" in rows
    given = config({AHEAD: 0.5, "unfinished_groups": "drop"})
    rows = [row[1] for row in batch_rows(given, build_plan(given))]
    assert "48 groups in a step (async_generation_ratio), the first count" in rows
    assert "groups that still run then: drop (unfinished_groups)" in rows
    given = config()
    assert not any("under way" in row[1] for row in batch_rows(given, build_plan(given)))


@cases("changes, text")
def test_what_works_otherwise_than_meant_is_said(changes: dict[str, Any], text: str) -> None:
    assert text in warnings_of(config(changes))


WEIGHT = {"train_infer_correction.is_weight.enabled": True}
FILTER = {"train_infer_correction.filters": [{"enabled": False}, {"enabled": True}]}
ENGINE = "actor_infer.strategy_args.strategy_name"
CUTS = [{"top_p": 0.9}, {"top_k": 5}, {"min_new_tokens": 2}, {"repetition_penalty": 1.1}, {"top_p": 0.9, "top_k": 5}]
CUT_BY = {"vllm": {*CUTS[0], *CUTS[1], *CUTS[2], *CUTS[3]}, "sglang": {*CUTS[2], *CUTS[3]}, "hf_infer": set[str]()}
"""Whose log-probs each setting cuts: tests/contract/test_rollout_engines.py holds the engines to it."""


@pytest.mark.parametrize("correction", [WEIGHT, FILTER], ids=["weight", "filter"])
@pytest.mark.parametrize("cut", CUTS, ids=lambda cut: "+".join(cut))
@pytest.mark.parametrize("engine", CUT_BY)
def test_a_correction_by_log_probs_of_a_cut_distribution_is_refused(
    engine: str, cut: dict[str, Any], correction: dict[str, Any]
) -> None:
    sampling = {f"actor_infer.generating_args.{key}": value for key, value in cut.items()}
    found = [text for text in problems({ENGINE: engine, **sampling, **correction}) if "those of the rest of it" in text]
    narrowing = [key for key in cut if key in CUT_BY[engine]]
    assert len(found) == bool(narrowing)
    for text in found:
        assert text.startswith("train_infer_correction.") and f"log-probs of {engine}" in text
        assert all(f"actor_infer.generating_args.{key}" in text for key in narrowing)


@pytest.mark.parametrize("off", [{}, {"train_infer_correction.is_weight.enabled": False}])
def test_a_cut_distribution_without_a_correction_is_a_warning(off: dict[str, Any]) -> None:
    changes = {"actor_infer.generating_args.top_p": 0.9, **off}
    assert problems(changes) == []
    assert any("with top_p on, the log-probs of vllm are not" in text for text in warnings_of(config(changes)))


def test_trinitys_names_for_the_same_are_understood() -> None:
    given = tree({"sync_interval": 2, "sync_offset": 1, "wait_after_min": 5})
    assert apply_aliases(RLVRConfig, given) == ([], [])
    assert build_plan(RLVRConfig.model_validate(given)).bounds == RolloutBounds(32, 32, 2, 2, grace_s=5)
    (wrong,), _ = apply_aliases(RLVRConfig, tree({"sync_interval": 2, EVERY: 3}))
    assert wrong.text == f"sync_interval: 2 contradicts {EVERY}: 3; both mean the same. Keep one."
    assert apply_aliases(RLVRConfig, {"sync_interval": 2, "actor_train": "none"}) == ([], [])  # said elsewhere
