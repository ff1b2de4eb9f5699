"""mtp_training_mode before anything starts."""

from typing import Any

import pytest

from roll.features.mtp.checks import head_model_problems
from roll.models.megatron.family_table import model_problems
from roll.pipeline.agentic.agentic_config import AgenticConfig
from roll.run.start.preflight import choices
from tests.helpers.cases import cases
from tests.helpers.configs import config, problems, warnings_of

KEY = "actor_train.mtp_training_mode"
NAME = "actor_train.strategy_args.strategy_name"
SETTINGS = "actor_train.strategy_args.strategy_config"
MEGATRON = {NAME: "megatron_train"}
MODEL: dict[str, Any] = {"model_type": "glm4_moe", "num_hidden_layers": 2, "num_nextn_predict_layers": 1}


@pytest.mark.parametrize("mode", ["standalone", "joint", "disabled", None])
def test_megatron_takes_it(mode: str | None) -> None:
    parallel = {"pipeline_model_parallel_size": 2, "transformer_impl": "local"}
    assert problems({KEY: mode, SETTINGS: parallel, "actor_train.router_replay.mode": "R2"} | MEGATRON) == []


def test_heads_are_off_weigh_a_tenth_and_are_idle_elsewhere() -> None:
    worker = config().actor_train
    assert (worker.trains_prediction_head, worker.mtp_loss_scaling_factor) == (False, 0.1)
    assert {"mtp_training_mode", "mtp_loss_scaling_factor"} <= AgenticConfig.role_table["actor_train"].reads
    critic = {"critic.device_mapping": [3], "critic.strategy_args.strategy_name": "deepspeed_train"}
    made = config({"critic.mtp_loss_scaling_factor": 0.2, "adv_estimator": "gae"} | critic)
    told = [text for text in warnings_of(made) if "mtp_loss_scaling_factor" in text]
    assert told == ["critic: mtp_loss_scaling_factor does nothing here: this role learns values."]


@cases("changes, said")
def test_what_cannot_train_heads_is_refused(changes: dict[str, Any], said: str) -> None:
    found = problems({KEY: "joint"} | MEGATRON | changes)
    assert any(said in text for text in found), found


def of_model(model: dict[str, Any], **changes: Any) -> list[str]:
    choice = next(choice for choice in choices(config({KEY: "joint"} | MEGATRON | changes)) if choice.role.learns)
    return [problem.text for problem in head_model_problems(choice, model)]


@pytest.mark.parametrize(
    "changes", [{"num_nextn_predict_layers": 0}, {"num_nextn_predict_layers": 2}, {"model_type": "llama"}]
)
def test_a_model_without_a_head_that_is_known_is_refused(changes: dict[str, Any]) -> None:
    text = f"{KEY}: org/model is no model of deepseek_v3, glm4_moe, glm4_moe_lite with num_nextn_predict_layers: 1"
    assert of_model(MODEL) == []
    assert of_model(MODEL | changes) == [f"{text}. Set it to disabled."]
    assert of_model(MODEL | changes, **{KEY: "disabled"}) == []


def test_a_tied_model_is_refused_over_pipeline_stages() -> None:
    def found(stages: int, **changes: Any) -> list[str]:
        made = config({KEY: "joint", SETTINGS: {"pipeline_model_parallel_size": stages}} | MEGATRON)
        choice = next(choice for choice in choices(made) if choice.role.learns)
        return [problem.text for problem in model_problems(choice, MODEL | changes) if KEY in problem.text]

    text = f"{KEY}: a model whose output matrix is its embedding (tie_word_embeddings) trains no MTP head "
    ways_out = f"over 2 pipeline stages. Set {SETTINGS}.pipeline_model_parallel_size: 1, or {KEY}: disabled."
    assert found(2, tie_word_embeddings=True) == [text + ways_out]
    assert found(1, tie_word_embeddings=True) == found(2) == []


@pytest.mark.parametrize("mode", [..., None, "disabled"])
def test_a_factor_without_a_loss_is_told(mode: Any) -> None:
    factor = "actor_train.mtp_loss_scaling_factor"
    text = f"{factor} does nothing while {KEY} is off."
    assert text in warnings_of(config({KEY: mode, factor: 0.2}))
    assert text not in warnings_of(config({KEY: "joint", factor: 0.2} | MEGATRON))
    assert text not in warnings_of(config({KEY: mode}))
