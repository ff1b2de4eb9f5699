"""strategy_config of the megatron strategies: what is refused, and with which words."""

from typing import Any

import pytest

from roll.configs.sections.cluster import WorkerConfig
from roll.configs.strategies.megatron_checks import (
    ModelFacts,
    cpu_problems,
    megatron_problems,
    megatron_warnings,
    missing_packages,
    ranks_problems,
    repeated_problems,
    sizes_problems,
)
from roll.configs.strategies.megatron_config import (
    KNOWN,
    NOT_HERE,
    PASSED_ON,
    SET_ELSEWHERE,
    MegatronSettings,
    split_settings,
)
from roll.configs.strategies.table import required_facts
from roll.utils.imports import is_installed
from tests.helpers.cases import cases

AT = "actor_train.strategy_args.strategy_config"


def texts(**config: Any) -> list[str]:
    return [problem.text for problem in megatron_problems(AT, config)]


@cases("config, message")
def test_what_megatron_cannot_run_is_refused_with_the_reason(config: dict[str, Any], message: str) -> None:
    found = texts(**config)
    assert len(found) == 1
    assert found[0].startswith(AT)
    assert message in found[0]


def test_what_it_can_run_is_taken_and_the_rest_passed_on() -> None:
    config = {"tensor_model_parallel_size": 2, "sequence_parallel": True, "attention_softmax_in_fp32": True}
    assert texts(**config) == []
    settings, passed_on = split_settings(config)
    assert (settings.tensor_model_parallel_size, settings.sequence_parallel) == (2, True)
    assert passed_on == {"attention_softmax_in_fp32": True}
    config = {"transformer_impl": "transformer_engine", "moe_grouped_gemm": True, "apply_rope_fusion": True}
    config |= {"fp32_residual_connection": True, "cp_comm_type": "p2p"}
    assert texts(**config) == []


@pytest.mark.parametrize("key", ["apply_rope_fusion", "gradient_accumulation_fusion"])
def test_a_kernel_of_transformer_engine_asks_for_its_layers(key: str) -> None:
    assert texts(**{key: True}) == []
    settings, _ = split_settings({key: True})
    assert settings.transformer_impl == "transformer_engine"
    assert split_settings({key: False})[0].transformer_impl == "local"
    if not is_installed("transformer_engine"):
        (found,) = (problem.text for problem in missing_packages(AT, settings))
        assert found.startswith(f"{AT}: {key} needs the package transformer-engine, which is not installed.")
        assert found.endswith("transformer_impl: local.")


@cases("config, taken, warning")
def test_what_is_taken_otherwise_than_written_is_said(config: dict[str, Any], taken: bool, warning: str | None) -> None:
    assert texts(**config) == []
    settings, _ = split_settings(config)
    assert settings.sequence_parallel is taken
    assert settings.masked_softmax_fusion is False
    found = list(megatron_warnings(AT, config))
    assert len(found) == (warning is not None)
    assert all(text.startswith(f"{AT}.{warning}") for text in found)


def test_keys_in_additional_configs_count_as_any_other() -> None:
    inner = {"attention_softmax_in_fp32": True, "recompute_granularity": "selective", "recompute_modules": "moe, mlp"}
    config = {"tensor_model_parallel_size": 2, "additional_configs": inner}
    assert texts(**config) == []
    settings, passed_on = split_settings(config)
    assert (settings.tensor_model_parallel_size, settings.recompute_modules) == (2, ("moe", "mlp"))
    assert passed_on == {"attention_softmax_in_fp32": True}
    assert "Megatron strategies have no such key" in texts(additional_configs={"no_such": 1})[0]


def test_a_value_that_repeats_another_setting_must_agree_with_it() -> None:
    values = {"bf16": True, "fp16": False, "max_grad_norm": 1.0}
    assert list(repeated_problems(AT, {"bf16": True, "max_grad_norm": 1, "fp16": None}, values)) == []
    found = [p.text for p in repeated_problems(AT, {"fp16": True, "max_grad_norm": 2.0, "hidden_size": 8}, values)]
    assert found == [
        f"{AT}.fp16: set by model_args.dtype (false), which true contradicts. Remove it.",
        f"{AT}.max_grad_norm: set by max_grad_norm (1.0), which 2.0 contradicts. Remove it.",
        f"{AT}.hidden_size: set by the model's config.json. Remove it.",
    ]


@cases("settings, ranks, message")
def test_expert_sizes_that_do_not_divide_the_ranks_are_refused(
    settings: dict[str, Any], ranks: int, message: str
) -> None:
    (found,) = (problem.text for problem in ranks_problems(AT, MegatronSettings.model_validate(settings), ranks))
    assert message in found


def test_what_gloo_cannot_do_is_refused_with_what_it_can() -> None:
    settings = MegatronSettings(expert_model_parallel_size=2, expert_tensor_parallel_size=2)
    (found,) = (problem.text for problem in cpu_problems(AT, settings))
    assert "2 with expert_model_parallel_size 2 and the alltoall dispatcher does not run on gloo" in found
    assert found.endswith("Set it to 1.")
    for fine in ({"expert_tensor_parallel_size": None}, {"moe_token_dispatcher_type": "allgather"}):
        assert list(cpu_problems(AT, settings.model_copy(update=fine))) == []


@pytest.mark.skipif(is_installed("transformer_engine"), reason="transformer-engine is installed")
def test_layers_of_a_package_that_is_missing_are_refused_with_how_to_get_it() -> None:
    (found,) = (p.text for p in missing_packages(AT, MegatronSettings(transformer_impl="transformer_engine")))
    assert "transformer_impl needs the package transformer-engine, which is not installed" in found
    assert found.endswith("transformer_impl: local.")
    assert list(missing_packages(AT, MegatronSettings())) == []


@pytest.mark.parametrize(
    ("model", "facts"),
    [
        ({"num_attention_heads": 8, "num_hidden_layers": 4, "intermediate_size": 96}, ModelFacts(8, 8, 4, 0, 96, 0)),
        (
            {"num_attention_heads": 32, "num_key_value_heads": 4, "num_hidden_layers": 48, "num_experts": 128,
             "intermediate_size": 6144, "moe_intermediate_size": 768},
            ModelFacts(32, 4, 48, 128, 0, 768),
        ),
        (
            {"num_attention_heads": 8, "num_hidden_layers": 4, "num_experts": 4, "intermediate_size": 96,
             "moe_intermediate_size": 32, "mlp_only_layers": [0]},
            ModelFacts(8, 8, 4, 4, 96, 32),
        ),
        (
            {"num_attention_heads": 8, "num_hidden_layers": 4, "num_experts": 4, "intermediate_size": 96,
             "moe_intermediate_size": 32, "decoder_sparse_step": 2, "shared_expert_intermediate_size": 64},
            ModelFacts(8, 8, 4, 4, 32, 32),
        ),
        (
            {"num_attention_heads": 32, "num_key_value_heads": 8, "num_hidden_layers": 32, "num_local_experts": 8,
             "intermediate_size": 14336},
            ModelFacts(32, 8, 32, 8, 0, 14336),
        ),
        ({"model_type": "unknown"}, None),
    ],
)  # fmt: skip
def test_the_facts_of_a_model_are_read_from_its_config(model: dict[str, Any], facts: ModelFacts | None) -> None:
    assert ModelFacts.of(model) == facts


def test_no_key_is_two_things() -> None:
    own = set(MegatronSettings.model_fields)
    assert not own & PASSED_ON
    assert not (own | PASSED_ON) & SET_ELSEWHERE.keys()
    assert not KNOWN & NOT_HERE.keys()


def test_every_key_that_is_passed_on_exists_in_megatron() -> None:
    """Of the installed megatron-core: an upgrade that drops one is noticed here."""
    config = pytest.importorskip(
        "megatron.core.transformer.transformer_config", reason="megatron-core is not installed"
    )
    assert set(config.TransformerConfig.__dataclass_fields__) >= PASSED_ON


@pytest.mark.parametrize(
    ("settings", "model", "message"),
    [
        ({"tensor_model_parallel_size": 3}, ModelFacts(8, 4, 6),
            "must divide the model's 8 heads and 4 key-value heads."),
        ({"pipeline_model_parallel_size": 4}, ModelFacts(8, 4, 6), "4 does not divide the model's 6 layers."),
        ({"pipeline_model_parallel_size": 2, "virtual_pipeline_model_parallel_size": 2}, ModelFacts(8, 4, 6),
            "2 does not divide the 3 layers of a pipeline stage."),
        ({"expert_model_parallel_size": 3}, ModelFacts(8, 4, 6, 8), "must divide the model's 8 experts."),
        ({"tensor_model_parallel_size": 4}, ModelFacts(8, 4, 6, 0, 90), "must divide the model's MLP width of 90."),
        ({"expert_tensor_parallel_size": 4}, ModelFacts(8, 4, 6, 8, 0, 90), "must divide the model's expert width of "
            "90."),
        ({"pipeline_model_parallel_size": 4, "account_for_loss_in_pipeline_split": True}, ModelFacts(8, 4, 8),
            "4 does not divide the model's 8 layers (with account_for_loss_in_pipeline_split: true)."),
        ({"pipeline_model_parallel_size": 4, "num_layers_in_first_pipeline_stage": 3}, ModelFacts(8, 4, 10),
            "4 does not divide the model's 10 layers (with num_layers_in_first_pipeline_stage: 3)."),
        ({"tensor_model_parallel_size": 4}, ModelFacts(8, 4, 6, latent_width=90), "must divide the widths of the "
            "model's latents (q_lora_rank; kv_lora_rank + qk_rope_head_dim)."),
        ({"apply_rope_fusion": True}, ModelFacts(8, 4, 6, local_layers="latent attention"),
            "strategy_config: apply_rope_fusion with latent attention, which has Megatron's own layers alone here. "
            "Remove it."),
        ({"transformer_impl": "transformer_engine"}, ModelFacts(8, 4, 6, local_layers="a norm behind attention"),
            "transformer_impl with a norm behind attention"),
        ({"tensor_model_parallel_size": 2}, ModelFacts(8, 4, 6, 8, has_expert_biases=True),
            "expert_tensor_parallel_size: 2, but this model's experts have biases"),
        ({"bias_swiglu_fusion": True}, ModelFacts(8, 4, 6, 8, has_expert_biases=True),
            "bias_swiglu_fusion: true, but Megatron's (0.16) kernel clamps before it adds the biases"),
    ],
)  # fmt: skip
def test_sizes_that_do_not_divide_the_model_are_refused(
    settings: dict[str, Any], model: ModelFacts, message: str
) -> None:
    found = [problem.text for problem in sizes_problems(AT, MegatronSettings.model_validate(settings), model)]
    assert len(found) == 1
    assert message in found[0]


@cases("settings, own")
def test_stages_share_the_layers(settings: dict[str, Any], own: list[int] | None) -> None:
    layers = MegatronSettings.model_validate({"pipeline_model_parallel_size": 2} | settings).stage_layers(8)
    assert layers == (own and tuple(own))


@pytest.mark.parametrize(
    ("model", "facts"),
    [
        (
            {"n_routed_experts": 8, "n_shared_experts": 2, "moe_intermediate_size": 6, "first_k_dense_replace": 1},
            ModelFacts(4, 4, 2, num_experts=8, ffn_width=4, expert_width=6),
        ),
        (
            {"n_routed_experts": 8, "moe_intermediate_size": 6, "mlp_layer_types": ["sparse", "sparse"]},
            ModelFacts(4, 4, 2, num_experts=8, ffn_width=0, expert_width=6),
        ),
        (
            {"kv_lora_rank": 12, "qk_rope_head_dim": 8, "q_lora_rank": 30},
            ModelFacts(4, 4, 2, 0, 16, latent_width=10, local_layers="latent attention"),
        ),
        (
            {"kv_lora_rank": 12, "qk_rope_head_dim": 8, "q_lora_rank": None},
            ModelFacts(4, 4, 2, 0, 16, latent_width=20, local_layers="latent attention"),
        ),
        ({"model_type": "glm4"}, ModelFacts(4, 4, 2, 0, 16, local_layers="a norm behind attention")),
        (
            {"model_type": "gpt_oss", "num_local_experts": 8},
            ModelFacts(4, 4, 2, 8, 0, 16, local_layers="sinks in attention", has_expert_biases=True),
        ),
    ],
)
def test_sizes_are_those_of_config_json(model: dict[str, Any], facts: ModelFacts) -> None:
    shape = {"num_attention_heads": 4, "num_hidden_layers": 2, "intermediate_size": 16}
    assert ModelFacts.of(shape | model) == facts


@pytest.mark.parametrize(
    ("config", "is_apart"),
    [
        ({"tensor_model_parallel_size": 2}, False),
        ({"tensor_model_parallel_size": 2, "expert_tensor_parallel_size": 1}, True),
        ({"expert_model_parallel_size": 2}, True),
    ],
)
def test_a_checkpoint_is_tied_to_whether_experts_have_an_optimizer_of_their_own(
    config: dict[str, Any], is_apart: bool
) -> None:
    strategy = {"strategy_name": "megatron_train", "strategy_config": config | {"use_distributed_optimizer": False}}
    worker = WorkerConfig.model_validate({"device_mapping": [0, 1], "strategy_args": strategy})
    assert required_facts(worker, 1)["expert parallel"] is is_apart
