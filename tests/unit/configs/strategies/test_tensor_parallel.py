"""`tensor_parallel_size` of the fsdp2 strategies, before anything is built."""

from typing import Any

import pytest

from roll.configs.plan.layout import ParallelSizes, parallel_sizes
from roll.configs.strategies.choice import Choice
from roll.configs.strategies.fsdp2 import model_problems
from roll.configs.strategies.fsdp2_settings import PLANNED, Fsdp2Settings
from roll.configs.tables.roles import ROLES
from tests.helpers.cases import cases
from tests.unit.configs.strategies.test_fsdp2 import found, worker

TWO = {"tensor_parallel_size": 2}
QWEN = {"model_type": "qwen2", "num_attention_heads": 12, "num_key_value_heads": 2, "intermediate_size": 96}


def test_ranks_that_share_matrices_are_one_data_parallel_rank() -> None:
    assert parallel_sizes(worker(TWO)) == ParallelSizes(data=2, tensor=2, whole_head=True)
    assert parallel_sizes(worker({})) == ParallelSizes(data=4)
    assert of_model(QWEN, 1) == of_model(QWEN, 2) == []
    (text,) = of_model(QWEN, 4)
    assert "4 does not divide num_key_value_heads 2 of" in text and text.endswith("Sizes that do: 1, 2.")
    assert list(PLANNED) == sorted(set(PLANNED))


@pytest.mark.parametrize(("size", "groups"), [(-1, 4), (1, 1), (2, 2), (8, 4)])
def test_fsdp_size_counts_groups_that_share_matrices(size: int, groups: int) -> None:
    assert Fsdp2Settings(tensor_parallel_size=2, fsdp_size=size).shard_size(8) == groups


@cases("config, given, why")
def test_what_does_not_go_with_it(config: dict[str, Any], given: dict[str, Any], why: str) -> None:
    said = [
        text for text in found(TWO | config, **given) if text.startswith("tensor_parallel_size: 2 with actor_train.")
    ]
    assert len(said) == 1 and why in said[0]


def of_model(model: dict[str, Any], size: int) -> list[str]:
    choice = Choice(ROLES["actor_train"], worker({"tensor_parallel_size": size}))
    return [problem.text.removeprefix(f"{choice.at}.") for problem in model_problems(choice, model)]


@pytest.mark.parametrize("kind", ["qwen3_moe", "apertus", None])
def test_a_type_whose_plan_was_not_tried_is_refused(kind: str | None) -> None:
    (text,) = of_model(QWEN | {"model_type": kind}, 2)
    assert text.startswith(f"tensor_parallel_size: models of type {kind} are not divided. Set it to 1,")
    assert of_model(QWEN | {"model_type": kind}, 1) == []
