"""`ep_size` of the fsdp2 strategies, before anything is built."""

from typing import Any

import pytest

from roll.configs.plan.layout import ParallelSizes, parallel_sizes
from roll.configs.strategies.choice import Choice
from roll.configs.strategies.fsdp2 import model_problems
from roll.configs.strategies.fsdp2_settings import DIVIDED_EXPERTS
from roll.configs.tables.roles import ROLES
from tests.unit.configs.strategies.test_fsdp2 import found, worker

TWO = {"ep_size": 2}
QWEN = {"model_type": "qwen3_moe", "num_experts": 12}


def test_ranks_that_divide_experts_stay_data_parallel_ranks() -> None:
    assert parallel_sizes(worker(TWO)) == ParallelSizes(data=4)
    assert found(TWO) == found(TWO, "reference") == found(TWO | {"fsdp_size": 2}) == []


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"ep_size": 0}, "ep_size: 0 must be at least 1."),
        ({"ep_size": 3}, "ep_size: 3 does not divide the 4 ranks (of 4) that hold the model together. Use one of "),
        (
            {"ep_size": 4, "fsdp_size": 2},
            "ep_size: 4 does not divide the 2 ranks (of 4) that hold the model together. Use one of [1, 2].",
        ),
    ],
)
def test_sizes_that_do_not_divide_the_ranks(config: dict[str, Any], message: str) -> None:
    (text,) = found(config)
    assert text.startswith(message)


@pytest.mark.parametrize(
    ("config", "given", "why"),
    [
        ({"tensor_parallel_size": 2}, {}, "tensor_parallel_size: tensor parallel does not support mixtures."),
        ({}, {"use_torch_compile": True}, "use_torch_compile: the number of exchanged tokens is known"),
        ({}, {"training_args": {"optim": "muon"}}, "training_args.optim: muon, which was not tried on divided"),
        ({}, {"training_args": {"optim": "adamw_8bit"}}, "training_args.optim: adamw_bnb_8bit, which was not tried"),
        (
            {},
            {"model_args": {"lora_target": "q_proj", "additional_target": "lm_head"}},
            "model_args.additional_target: copies of layers were never tried with divided experts.",
        ),
    ],
    ids=["tensor", "compile", "muon", "8bit", "copies"],
)
def test_what_does_not_go_with_it(config: dict[str, Any], given: dict[str, Any], why: str) -> None:
    said = [text for text in found(TWO | config, **given) if text.startswith("ep_size: 2 with actor_train.")]
    assert len(said) == 1 and why in said[0]


def of_model(model: dict[str, Any], size: int) -> list[str]:
    choice = Choice(ROLES["actor_train"], worker({"ep_size": size}))
    return [problem.text.removeprefix(f"{choice.at}.") for problem in model_problems(choice, model)]


@pytest.mark.parametrize(
    "model",
    [
        QWEN,
        {"model_type": "deepseek_v3", "n_routed_experts": 12},
        {"model_type": "gpt_oss", "num_local_experts": 12},
        {"model_type": "qwen3_5_moe", "text_config": {"model_type": "qwen3_5_moe_text", "num_experts": 12}},
    ],
    ids=["qwen", "deepseek", "gpt-oss", "text-part"],
)
def test_sizes_that_divide_the_experts(model: dict[str, Any]) -> None:
    assert of_model(model, 1) == of_model(model, 4) == []
    (text,) = of_model(model, 8)
    assert "8 does not divide the 12 experts of" in text and text.endswith("Sizes that do: 1, 2, 3, 4, 6, 12.")


@pytest.mark.parametrize("kind", ["longcat_flash", "qwen3", None])
def test_a_type_that_was_not_tried_is_refused(kind: str | None) -> None:
    (text,) = of_model(QWEN | {"model_type": kind}, 2)
    assert text.startswith(f"ep_size: experts of models of type {kind} are not divided. Set it to 1,")
    assert of_model(QWEN | {"model_type": kind}, 1) == []


def test_types_are_named_once() -> None:
    assert list(DIVIDED_EXPERTS) == sorted(set(DIVIDED_EXPERTS))
