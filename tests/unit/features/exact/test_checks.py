"""`exact_log_probs` in a plan: what breaks it is refused by its key, with a way out."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from roll.configs.checks.pictures import picture_problems
from roll.configs.plan.batch_plan import build_plan
from roll.configs.sections.cluster import WorkerConfig
from roll.configs.strategies.choice import Choice
from roll.configs.tables.roles import ROLES
from roll.features.exact.checks import KEY, WIDTH, exact_machine_problems, exact_model_problems
from roll.models.exact.sizes import WHOLE
from roll.platforms.table import PLATFORMS
from roll.run.start.preflight import machine_report
from tests.helpers.configs import config, problems

EXACT: dict[str, Any] = {
    "exact_log_probs": True,
    "actor_train.strategy_args.strategy_name": "fsdp2_train",
    "actor_infer.strategy_args.strategy_name": "hf_infer",
}
LORA: dict[str, Any] = {"actor_train.model_args.lora_target": "all-linear"}


def said(changes: dict[str, Any]) -> list[str]:
    return [text for text in problems(EXACT | changes) if "exact_log_probs" in text]


def test_it_works_with_both_trainers() -> None:
    assert said({}) == []
    assert said({"actor_train.strategy_args.strategy_name": "deepspeed_train"}) == []
    assert said({"actor_train.use_prefix_sharing": "on"}) == []


def test_adapters_go_to_the_engine_by_themselves() -> None:
    """A and s B, which add to the bit what s A and B do, where s is a power of two."""
    for scaled in ({"lora_alpha": 8}, {"lora_alpha": 4}, {"lora_rank": 16, "use_rslora": True, "lora_alpha": 64}):
        given = LORA | {f"actor_train.model_args.{name}": value for name, value in scaled.items()}
        assert said(given) == []
    made = config(EXACT | LORA | {"actor_train.model_args.freeze_module_prefix": "model.layers.0."})
    assert build_plan(made).adapter_rank == 8
    args = made.actor_infer.model_args.with_adapters_of(made.actor_train.model_args)
    assert (args.lora_target, args.lora_rank, args.adapter_alpha) == (("all-linear",), 8, 8)
    assert args.frozen_prefixes == ("model.layers.0.",) and args.dtype == made.actor_infer.model_args.dtype
    assert build_plan(config(LORA)).adapter_rank is None
    (text,) = said(LORA | {"mode": "explore"})
    assert "true sends adapters from the trainer's memory, and mode: explore reads weights from files" in text


def test_what_the_engine_s_settings_say_of_adapters_does_not_change_them(tmp_path: Path) -> None:
    """YAMLs often give both roles the same model_args. With use_rslora s would be applied twice, in part."""
    told = {"use_rslora": True, "lora_dropout": 0.1, "additional_target": "norm", "adapter_name_or_path": str(tmp_path)}
    made = [config(EXACT | LORA | given) for given in ({}, {f"actor_infer.model_args.{k}": v for k, v in told.items()})]
    bare, full = (each.actor_infer.model_args.with_adapters_of(each.actor_train.model_args) for each in made)
    assert full == bare and not full.use_rslora


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"actor_infer.strategy_args.strategy_name": "vllm"},
            "vllm has kernels of its own. Use hf_infer",
        ),
        ({"actor_train.strategy_args.strategy_name": "megatron_train"}, "megatron_train has kernels of its own"),
        ({"actor_train.model_args.dtype": "fp16", "actor_infer.model_args.dtype": "fp16"}, "fp16 is not tested"),
        ({"actor_infer.model_args.dtype": "fp32"}, "give different numbers. Set them to the same"),
        (LORA | {"actor_train.model_args.lora_alpha": 24}, "lora_alpha: 24 multiplies what adapters add by 3"),
        (LORA | {"actor_train.model_args.use_rslora": True}, "lora_alpha: 16 multiplies what adapters add by 5.65685"),
        (LORA | {"actor_train.model_args.lora_rank": 6}, "lora_rank: 6 is not a multiple of 4"),
        (LORA | {"actor_train.model_args.lora_dropout": 0.1}, "lora_dropout: 0.1 leaves inputs out"),
        (
            LORA | {"actor_train.model_args.additional_target": "embed_tokens"},
            "trains embed_tokens in full",
        ),
        ({"actor_train.model_args.lora_target": "q_proj, lm_head"}, "true sends no adapter of lm_head"),
        ({"actor_train.model_args.ulysses_size": 2}, "ulysses_size: 2 divides sequences"),
        (
            {"actor_train.strategy_args.strategy_config": {"tensor_parallel_size": 2}},
            "tensor_parallel_size: 2 adds up products in parts",
        ),
        ({"actor_train.strategy_args.strategy_config": {"ep_size": 2}}, "ep_size: 2 sends tokens to the experts"),
        (
            {
                "actor_train.strategy_args.strategy_name": "deepspeed_train",
                "actor_train.model_args.dtype": "fp32",
                "actor_infer.model_args.dtype": "fp32",
                "actor_train.strategy_args.strategy_config": {"zero_optimization": {"stage": 3}},
            },
            "stage: 3 adds biases after rounding products. Set memory_efficient_linear beside it to false",
        ),
        ({"actor_train.use_torch_compile": True}, "use_torch_compile: True uses different kernels"),
        (
            {"actor_train.model_args.fused_kernel_options.impl_backend": "cut_cross_entropy"},
            "cut_cross_entropy has kernels of its own. Set it to torch",
        ),
        ({"actor_infer.model_args.attn_implementation": "fa2"}, "fa2 is not the exact attention"),
        ({"kv_on_update": "keep"}, "kv_on_update: keep samples over keys and values of old weights"),
    ],
)
def test_what_breaks_it_is_refused(changes: dict[str, Any], message: str) -> None:
    texts = said(changes)
    assert any(re.search(message, text) for text in texts), texts
    assert all("false" in text or "Remove one of them" in text for text in texts)


@pytest.mark.parametrize("platform", ["npu", "rocm"])
def test_devices_without_exact_products_are_refused(platform: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the key platform, and by what this machine has."""
    (text,) = said({"platform": platform})
    why = "exact_log_probs: true: exact passes work on NVIDIA's GPUs and on CPUs"
    assert text == f"{why}. Set it to false (platform: {platform})."
    assert said({"platform": "cuda"}) == said({"platform": "cpu"}) == []
    made = config(EXACT)
    assert list(exact_machine_problems(made)) == []
    monkeypatch.setattr("roll.features.exact.checks.machine_platform", lambda: PLATFORMS[platform])
    (problem,) = exact_machine_problems(made)
    assert problem.text.startswith(f"{why}, and this machine has devices of platform {platform}.")
    assert list(exact_machine_problems(config({**EXACT, "platform": "cpu"}))) == []


def test_a_plan_and_exact_products_know_the_same_width() -> None:
    assert WIDTH == WHOLE


def of_model(role: str, model: dict[str, Any]) -> list[str]:
    choice = Choice(ROLES[role], WorkerConfig.model_validate({"model_args": {"model_name_or_path": "m"}}))
    return [problem.text for problem in exact_model_problems(choice, model)]


@pytest.mark.parametrize(
    ("model", "why"),
    [
        (
            {"model_type": "longcat_flash", "num_experts": 8},
            "experts, which exact passes do not know of this type",
        ),
        ({"model_type": "kimi", "text_config": {"n_routed_experts": 8}}, "experts"),
        ({"model_type": "falcon_h1"}, "layers that carry a state from token to token"),
        ({"model_type": "mamba2"}, "states that continue into the next row"),
        ({"model_type": "gptj"}, "attention of its own"),
        ({"model_type": "diffllama"}, "attention that subtracts one half from the other"),
        ({"model_type": "gemma2"}, "a soft cap on attention (attn_logit_softcapping"),
        ({"model_type": "gpt_oss"}, "sinks in its attention"),
        ({"model_type": "bloom"}, "a bias by distance (ALiBi)"),
        (
            {"model_type": "axk2", "layer_types": ["indexed_attention"]},
            "layers of type indexed_attention",
        ),
        ({"rope_scaling": {"rope_type": "longrope"}}, "rotary frequencies that follow the longest row of a pass"),
    ],
)
def test_models_that_are_not_exact_are_refused_before_they_are_loaded(model: dict[str, Any], why: str) -> None:
    (text,) = of_model("actor_train", model)
    assert text.startswith("exact_log_probs: true with m (actor_train.model_args.model_name_or_path), wh")
    assert f" has {why}" in text
    assert text.endswith("Set exact_log_probs to false.") and len(of_model("reference", model)) == 1
    assert of_model("actor_infer", model) == of_model("critic", model) == [], "said of the trainer's, and not exact"


def test_models_of_whole_attention_of_windows_and_of_experts_are_exact() -> None:
    window = {"model_type": "gemma3_text", "layer_types": ["sliding_attention", "full_attention"], "sliding_window": 4}
    yarn = {"model_type": "qwen3", "rope_scaling": {"rope_type": "yarn", "factor": 2.0}}
    mixture = {"model_type": "qwen3_moe", "num_experts": 8}
    exact = ({"model_type": "llama"}, window, yarn, mixture)
    assert [of_model("actor_train", model) for model in exact] == [[]] * 4


def test_a_mixture_with_adapters_is_refused() -> None:
    args = {"model_name_or_path": "m", "lora_target": "q_proj"}
    choice = Choice(ROLES["actor_train"], WorkerConfig.model_validate({"model_args": args}))
    (problem,) = exact_model_problems(choice, {"model_type": "qwen3_moe", "num_experts": 8})
    assert "which has experts, whose exact products know no adapters (lora_target)" in problem.text
    assert list(exact_model_problems(choice, {"model_type": "qwen3"})) == []


def test_the_plan_reads_the_model_and_says_it_once(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "doge", "num_experts": 8}))
    for exact in (True, False):
        report = machine_report(config(EXACT | {"pretrain": str(tmp_path), "exact_log_probs": exact}))
        assert sum("exact_log_probs" in problem.text for problem in report.problems) == int(exact)


def test_rows_with_pictures_are_refused_beside_it() -> None:
    said = [list(picture_problems(config(EXACT | {KEY: exact}), "actor_train")) for exact in (True, False)]
    assert [any(text.startswith(f"{KEY}: true, but the rows show pictures") for text in each) for each in said] == [
        True,
        False,
    ]
