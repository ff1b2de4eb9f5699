"""Reward models in a configuration: which roles there are, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from roll.configs.plan.batch_plan import build_plan
from roll.configs.plan.describe import batch_rows, describe
from roll.pipeline.rlvr.rlvr_checks import rlvr_warnings
from roll.pipeline.rlvr.row_operators import data_domains
from roll.run.start.memory_report import gather_facts
from roll.run.start.preflight import machine_report
from tests.helpers.cases import cases
from tests.helpers.configs import config, problems

OWN: dict[str, Any] = {
    "worker_cls": "roll.pipeline.base_worker.RewardWorker",
    "strategy_args": {"strategy_name": "hf_infer"},
    "device_mapping": [0, 1],
    "infer_batch_size": 8,
}
FILTER = {"query_filter_config": {"type": "std_filter", "filter_args": {"std_threshold": 0}}}
SHARED = {"reward": {"strategy_args": {"strategy_name": "deepspeed_infer"}, "device_mapping": [3]}}


def test_domains_have_models_of_their_own_or_share_the_section_reward() -> None:
    rewards = {"math": {"reward": "math_rule"}, "chat": OWN, "essay": {"reward": "reward_model"}}
    changes = {"rewards": rewards, "reward_pretrain": "org/rm", **SHARED}
    assert problems(changes) == []
    made = config(changes)
    assert made.scorer_of == {"chat": "rewards.chat", "essay": "reward"}
    assert set(made.model_roles) == {"actor_train", "actor_infer", "reward", "rewards.chat"}
    assert list(made.cpu_roles) == ["rewards.math"]
    assert {name: made.sections[name].model_args.model_name_or_path for name in ("reward", "rewards.chat")} == {
        "reward": "org/rm",
        "rewards.chat": "org/rm",
    }
    assert [(d.name, d.required, d.checks) for d in data_domains(made)][1:] == [("chat", (), ()), ("essay", (), ())]
    plan = build_plan(made)
    assert ("actor_train", "rewards.chat", (0, 1)) in plan.layout.shared()
    said = describe(made, plan, batch_rows(made, plan))
    assert "actor_train and rewards.chat share 0..1 and take turns" in said
    assert "scores whole responses after the rollout, in batches of 8" in said


@cases("changes, said")
def test_what_cannot_work_is_refused_with_the_way_out(changes: dict[str, Any], said: str) -> None:
    assert any(said in problem for problem in problems(changes)), problems(changes)


def test_keys_without_effect_are_named() -> None:
    assert rlvr_warnings(config(SHARED)) == [
        "reward is not started: no domain of rewards has `reward: reward_model` without strategy_args."
    ]


def made_with(model: Path) -> Any:
    return config({"rewards.chat": {**OWN, "model_args": {"model_name_or_path": str(model)}}, "track_with": []})


def test_a_model_without_the_head_or_a_padding_token_is_refused_before_a_run(
    make_tiny_model_dir: Callable[..., Path], tmp_path: Path
) -> None:
    def said(model: Path) -> list[str]:
        return [p.text for p in machine_report(made_with(model)).problems if "rewards.chat" in p.text]

    good = make_tiny_model_dir(num_labels=1)
    assert said(good) == []
    assert "without the sequence-classification head that rewards.chat needs" in said(make_tiny_model_dir())[0]
    shape = json.loads((good / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**shape, "pad_token_id": None}))
    assert "has no pad_token_id" in said(tmp_path)[0]


def test_its_memory_is_that_of_the_weights_without_a_language_models_head(
    make_tiny_model_dir: Callable[..., Path],
) -> None:
    made = made_with(make_tiny_model_dir(num_labels=1))
    facts = gather_facts(made, build_plan(made), None)[0]["rewards.chat"]
    assert [weight.shape for weight in facts.shape.weights if weight.layer == 2][1:] == [(1, 128)]
    assert facts.score_tokens == 8 * (32 + 12) and facts.shares_devices and not facts.bucket_bytes
