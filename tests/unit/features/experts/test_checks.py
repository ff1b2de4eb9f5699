"""moe_aux_loss_coef before anything starts: which strategies and models have a load-balancing loss."""

from typing import Any

import pytest

from roll.features.experts.checks import balance_model_problems
from roll.run.start.preflight import choices
from tests.helpers.cases import cases
from tests.helpers.configs import config, problems

KEY = "actor_train.model_args.moe_aux_loss_coef"
CHECKPOINTING = "actor_train.model_args.gradient_checkpointing_use_reentrant"


@pytest.mark.parametrize("name", ["deepspeed_train", "fsdp2_train", "megatron_train"])
def test_every_trainer_takes_it(name: str) -> None:
    assert problems({KEY: 0.01, "actor_train.strategy_args.strategy_name": name}) == []


@cases("changes, said")
def test_what_leaves_routers_untold_is_refused(changes: dict[str, Any], said: str) -> None:
    found = problems({KEY: 0.01} | changes)
    assert len(found) == 1 and said in found[0], found


@pytest.mark.parametrize(
    ("model", "is_refused"),
    [
        ({"num_hidden_layers": 2}, True),
        ({"num_hidden_layers": 2, "num_experts": 4}, False),
        ({"text_config": {"num_hidden_layers": 2, "num_local_experts": 4}}, False),
    ],
)
def test_a_model_without_experts_is_refused(model: dict[str, Any], is_refused: bool) -> None:
    choice = next(choice for choice in choices(config({KEY: 0.01})) if choice.role.learns)
    found = [problem.text for problem in balance_model_problems(choice, model)]
    assert found == (
        [f"{KEY}: 0.01, but org/model has no experts that tokens could be spread over. Remove it."] * is_refused
    )
