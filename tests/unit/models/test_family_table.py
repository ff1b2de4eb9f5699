"""What Megatron is said to support, by config.json alone."""

import re

import pytest

from roll.models.megatron.family_table import FAMILIES, family_problem


@pytest.mark.parametrize("model_type", FAMILIES)
def test_every_family_is_known_by_its_bare_type(model_type: str) -> None:
    assert family_problem({"model_type": model_type}) is None


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ({"model_type": "gpt2"}, "knows no gpt2 models; it knows llama, qwen2"),
        ({"model_type": "qwen2", "use_sliding_window": True}, "qwen2 with use_sliding_window True .*only False"),
        ({"model_type": "llama", "hidden_act": "gelu"}, "hidden_act 'gelu' .*only 'silu'"),
        ({"model_type": "qwen2_moe", "qkv_bias": False}, "qkv_bias False .*only True"),
        ({"model_type": "qwen2", "rope_scaling": {"type": "dynamic", "factor": 2}}, "rope_type 'dynamic' .*yarn are"),
        ({"model_type": "qwen3", "rope_parameters": {"rope_type": "longrope"}}, "rope_type 'longrope'"),
        (
            {"model_type": "glm4_moe", "rope_parameters": {"rope_type": "yarn", "partial_rotary_factor": 0.5}},
            "'yarn' on a part of a head",
        ),
        ({"model_type": "gpt_oss", "attention_bias": False}, "attention_bias False .*only True"),
        ({"model_type": "gpt_oss", "swiglu_alpha": 1.5}, "swiglu_alpha 1.5 .*only 1.702"),
        (
            {"model_type": "gpt_oss", "quantization_config": {"quant_method": "mxfp4"}},
            "8 or 4 bits .*'mxfp4'.* are not read. Start from a copy in bf16",
        ),
        ({"model_type": "deepseek_v3", "norm_topk_prob": False}, "norm_topk_prob False .*only True"),
        ({"model_type": "gpt_oss", "num_experts_per_tok": 1}, "gpt_oss with num_experts_per_tok 1 .*no gradient"),
        (
            {"model_type": "qwen3_moe", "norm_topk_prob": True, "num_experts_per_tok": 1},
            "qwen3_moe with num_experts_per_tok 1",
        ),
    ],
)
def test_what_it_cannot_build_is_said(model: dict[str, object], words: str) -> None:
    problem = family_problem(model)
    assert problem is not None
    assert re.search(words, problem)


@pytest.mark.parametrize("model_type", ["qwen3_moe", "glm4_moe"])
def test_one_expert_is_fine_where_all_have_a_say_in_its_weight(model_type: str) -> None:
    assert family_problem({"model_type": model_type, "num_experts_per_tok": 1}) is None


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_scaling": None},
        {"rope_scaling": {"type": "linear", "factor": 2.0}},
        {"rope_parameters": {"rope_type": "llama3"}},
        {"rope_parameters": {"rope_theta": 1e6}},
    ],
)
def test_rotary_embeddings_that_do_not_depend_on_the_length_are_known(rope: dict[str, object]) -> None:
    assert family_problem({"model_type": "llama", **rope}) is None
