"""`ep_size` of the fsdp2 strategies, before anything is built."""

from typing import Any

import pytest

from roll.configs.plan.layout import ParallelSizes, parallel_sizes
from roll.configs.strategies.choice import Choice
from roll.configs.strategies.fsdp2 import model_problems
from roll.configs.strategies.fsdp2_settings import DIVIDED_EXPERTS
from roll.configs.tables.roles import ROLES
from tests.helpers.cases import cases
from tests.unit.configs.strategies.test_fsdp2 import found, worker

TWO = {"ep_size": 2}
QWEN = {"model_type": "qwen3_moe", "num_experts": 12}


def test_ranks_that_divide_experts_stay_data_parallel_ranks() -> None:
    assert parallel_sizes(worker(TWO)) == ParallelSizes(data=4)
    assert found(TWO) == found(TWO, "reference") == found(TWO | {"fsdp_size": 2}) == []
    assert list(DIVIDED_EXPERTS) == sorted(set(DIVIDED_EXPERTS))


@cases("config, message")
def test_sizes_that_do_not_divide_the_ranks(config: dict[str, Any], message: str) -> None:
    (text,) = found(config)
    assert text.startswith(message)


@cases("config, given, why")
def test_what_does_not_go_with_it(config: dict[str, Any], given: dict[str, Any], why: str) -> None:
    said = [text for text in found(TWO | config, **given) if text.startswith("ep_size: 2 with actor_train.")]
    assert len(said) == 1 and why in said[0]


def of_model(model: dict[str, Any], size: int) -> list[str]:
    choice = Choice(ROLES["actor_train"], worker({"ep_size": size}))
    return [problem.text.removeprefix(f"{choice.at}.") for problem in model_problems(choice, model)]


@cases("model")
def test_sizes_that_divide_the_experts(model: dict[str, Any]) -> None:
    assert of_model(model, 1) == of_model(model, 4) == []
    (text,) = of_model(model, 8)
    assert "8 does not divide the 12 experts of" in text


@pytest.mark.parametrize("kind", ["longcat_flash", "qwen3", None])
def test_a_type_that_was_not_tried_is_refused(kind: str | None) -> None:
    (text,) = of_model(QWEN | {"model_type": kind}, 2)
    assert text.startswith(f"ep_size: experts of models of type {kind} are not divided. Set it to 1,")
    assert of_model(QWEN | {"model_type": kind}, 1) == []
