"""What Megatron is said to support, by config.json alone."""

import re

import pytest

from roll.models.megatron.family_table import FAMILIES, family_problem
from tests.helpers.cases import cases


@pytest.mark.parametrize("model_type", FAMILIES)
def test_every_family_is_known_by_its_bare_type(model_type: str) -> None:
    assert family_problem({"model_type": model_type}) is None


@cases("model, words")
def test_what_it_cannot_build_is_said(model: dict[str, object], words: str) -> None:
    problem = family_problem(model)
    assert problem is not None
    assert re.search(words, problem)


@pytest.mark.parametrize("model_type", ["qwen3_moe", "glm4_moe"])
def test_one_expert_is_fine_where_all_have_a_say_in_its_weight(model_type: str) -> None:
    assert family_problem({"model_type": model_type, "num_experts_per_tok": 1}) is None


@cases("rope")
def test_rotary_embeddings_that_do_not_depend_on_the_length_are_known(rope: dict[str, object]) -> None:
    assert family_problem({"model_type": "llama", **rope}) is None
