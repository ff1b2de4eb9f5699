"""router_replay before anything starts."""

from typing import Any

import pytest

from roll.configs.plan.batch_plan import build_plan
from roll.features.experts.checks import router_replay_model_problems
from roll.run.start.preflight import choices
from tests.helpers.cases import cases
from tests.helpers.configs import config, problems

KEY = "actor_train.router_replay.mode"
ENGINE = "actor_infer.strategy_args.strategy_name"
NAME = "actor_train.strategy_args.strategy_name"


@pytest.mark.parametrize("name", ["deepspeed_train", "fsdp2_train", "megatron_train"])
def test_every_trainer_takes_it(name: str) -> None:
    assert problems({KEY: "R2", NAME: name}) == []
    assert problems({KEY: "R3", NAME: name, ENGINE: "hf_infer"}) == []
    assert problems({KEY: "R3", NAME: name, ENGINE: "sglang"}) == []


@cases("changes, said")
def test_what_cannot_replay_is_refused(changes: dict[str, Any], said: str) -> None:
    found = problems(changes)
    assert any(said in text for text in found), found


@pytest.mark.parametrize(("model", "is_refused"), [({}, True), ({"num_experts": 4}, False)])
def test_a_model_without_experts_is_refused(model: dict[str, Any], is_refused: bool) -> None:
    choice = next(choice for choice in choices(config({KEY: "R2"})) if choice.role.learns)
    found = [problem.text for problem in router_replay_model_problems(choice, {"num_hidden_layers": 2} | model)]
    assert found == [f"{KEY}: org/model has no experts. Set it to disable."] * is_refused


@pytest.mark.parametrize("mode", ["disable", "R2"])
def test_the_pass_that_chooses_is_there_in_every_step(mode: str) -> None:
    old = build_plan(config({KEY: mode, "force_disable_old_logprobs_recompute": True})).old_log_probs
    assert (old.source == "pass", old.reports_routes) == (mode == "R2", mode == "R2")
