"""Numbers of config.json that a path would leave out, before anything is loaded."""

import json
from pathlib import Path
from typing import Any

import pytest

from roll.configs.sections.cluster import WorkerConfig
from roll.configs.sections.model import ModelArgs
from roll.configs.strategies import packing
from roll.configs.strategies.choice import Choice
from roll.configs.strategies.model_facts import SINKS, TRIED, VLLM_REFUSED
from roll.configs.strategies.model_numbers import attention_cap, attention_problem
from roll.configs.strategies.number_checks import cap_warning, number_problems, rope_row_problems, untried_warning
from roll.configs.tables.roles import ROLES
from roll.models.megatron.family_table import FAMILIES, family_problem
from roll.run.start.preflight import machine_report, role_strategy_warnings
from tests.helpers.cases import cases
from tests.helpers.configs import config

LONGROPE = {"rope_type": "longrope", "original_max_position_embeddings": 4096}


def choice(role: str = "actor_train", packs: bool = False, config: dict[str, Any] | None = None, **args: Any) -> Choice:
    model = ModelArgs(model_name_or_path="m", **args)
    strategy: dict[str, Any] = {"strategy_name": "vllm", "strategy_config": config or {}}
    return Choice(ROLES[role], WorkerConfig(model_args=model, use_sequence_packing=packs, strategy_args=strategy))  # type: ignore[arg-type]


def refused(made: Choice, model: dict[str, Any]) -> list[str]:
    return [problem.text for problem in number_problems(made, model)]


@cases("model")
def test_sdpa_is_refused_where_attention_has_a_soft_cap_and_auto_says_eager(model: dict[str, Any]) -> None:
    assert refused(choice(), model) == refused(choice(attn_implementation="eager"), model) == []
    assert refused(choice(attn_implementation="fa2"), model) == []
    (text,) = refused(choice(attn_implementation="sdpa"), model)
    assert text.startswith("actor_train.model_args.attn_implementation: sdpa has no soft cap, and ")
    warning = cap_warning(choice(), model)
    assert warning is not None and "attn_implementation is eager: the model has attn_logit_softcapping" in warning


def test_numbers_that_a_role_does_not_use_are_no_hindrance() -> None:
    model = {"model_type": "gemma2", "attn_logit_softcapping": None}
    assert attention_cap(model) is None and refused(choice(attn_implementation="sdpa"), model) == []
    assert refused(choice("critic"), {"model_type": "llama", "logits_scaling": 2.0}) == []
    (text,) = refused(choice(model_config_kwargs={"attention_dropout": 0.1}), {"model_type": "llama"})
    assert text.startswith("actor_train.model_args.model_config_kwargs.attention_dropout: 0.1, but dropout is off")


@pytest.mark.parametrize("kind", sorted(SINKS))
@pytest.mark.parametrize("implementation", ["sdpa", "fa2"])
def test_a_kernel_without_sinks_is_refused(kind: str, implementation: str) -> None:
    why = attention_problem(implementation, {"model_type": kind})
    assert why is not None and f"has no sinks, and {kind} has. Use auto or eager" in why
    assert attention_problem(None, {"model_type": kind}) is attention_problem("eager", {"model_type": kind}) is None


@cases("kind, more, why")
def test_packs_are_refused_in_the_plan_for_what_config_json_does_not_say(
    kind: str, more: dict[str, Any], why: str
) -> None:
    (problem,) = packing.model_problems(choice(packs=True), {"model_type": kind} | more)
    assert why in problem.text and problem.text.startswith("actor_train.use_sequence_packing: true with m")
    assert list(packing.model_problems(choice(), {"model_type": kind} | more)) == []


@cases("model, why")
def test_a_number_that_the_type_leaves_out_is_refused_by_its_name(model: dict[str, Any], why: str) -> None:
    (text,) = refused(choice(), model)
    assert why in text
    if model["model_type"] in FAMILIES:
        assert why in str(family_problem(model))


@cases("model")
def test_a_number_that_the_type_reads_and_a_neutral_one_are_taken(model: dict[str, Any]) -> None:
    assert refused(choice(), model) == []


@cases("model, why")
def test_hf_infer_says_in_the_plan_what_it_cannot_sample_from(model: dict[str, Any], why: str) -> None:
    (text,) = refused(choice("actor_infer"), model)
    has_vllm = model["model_type"] not in VLLM_REFUSED
    assert why in text
    assert text.endswith("Use vllm or sglang." if has_vllm else "Use sglang, if it has them, or another model.")
    assert refused(choice("reference"), model) == []


def test_hf_infer_takes_models_with_states_beside_attention() -> None:
    layers = {"layer_types": ["linear_attention", "full_attention"]}
    text = {"model_type": "qwen3_5_text", **layers}
    for model in ({"model_type": "qwen3_next", **layers}, {"model_type": "qwen3_5", "text_config": text}):
        assert refused(choice("actor_infer"), model) == []
    assert refused(choice("actor_infer"), {"model_type": "nemotron_h", "hybrid_override_pattern": "M*"}) == []


def rope(longest: int, own_kernels: bool, model: dict[str, Any], config: dict[str, Any] | None = None) -> list[str]:
    made = choice("actor_infer" if own_kernels else "actor_train", config=config)
    found = rope_row_problems(made, model, longest, ("prompt_length", "response_length"), own_kernels)
    return [problem.text for problem in found]


def test_frequencies_that_follow_the_longest_row_are_refused_beyond_their_reach() -> None:
    model = {"model_type": "phi3", "rope_scaling": LONGROPE, "max_position_embeddings": 131072}
    assert rope(4096, False, model) == []
    (text,) = rope(4097, False, model)
    assert "rope_type longrope, whose frequencies change for a whole batch if one row is longer than 4096" in text
    (text,) = rope(1024, True, model)
    assert "With contexts up to 131072 vllm uses the long factors for every row" in text
    assert rope(1024, True, model, {"max_model_len": 4096}) == []
    dynamic = {"model_type": "llama", "rope_scaling": {"type": "dynamic"}, "max_position_embeddings": 2048}
    assert rope(2048, False, dynamic) == [] and "by a fixed length" in rope(1024, True, dynamic)[0]
    hunyuan = dynamic | {"model_type": "hunyuan_v1_dense", "rope_scaling": {"type": "dynamic", "alpha": 1000.0}}
    assert rope(2048, True, hunyuan) == [] and len(rope(2049, True, hunyuan)) == 1
    assert "by a fixed length" in rope(1024, True, hunyuan | {"model_type": "llama"})[0]
    assert rope(9999, True, {"model_type": "llama", "rope_scaling": {"rope_type": "yarn"}}) == []


def test_a_type_that_nobody_tried_is_said_in_the_plan(tmp_path: Path) -> None:
    assert untried_warning(choice(), {"model_type": "qwen3"}) is None
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "newcomer", "logits_scaling": 2.0}))
    made = config({"pretrain": str(tmp_path), "track_with": "jsonl"})
    assert any("models of type newcomer are untested" in text for text in role_strategy_warnings(made))
    assert any(
        "logits_scaling: 2.0, which is not supported for newcomer" in p.text for p in machine_report(made).problems
    )


def test_every_family_of_other_tables_was_tried() -> None:
    assert {*FAMILIES} <= TRIED
