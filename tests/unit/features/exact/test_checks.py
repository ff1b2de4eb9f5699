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
from tests.helpers.cases import cases
from tests.helpers.configs import config, problems

EXACT: dict[str, Any] = {
    "exact_log_probs": True,
    "actor_train.strategy_args.strategy_name": "fsdp2_train",
    "actor_infer.strategy_args.strategy_name": "hf_infer",
}
LORA: dict[str, Any] = {"actor_train.model_args.lora_target": "all-linear"}


def said(changes: dict[str, Any]) -> list[str]:
    return [text for text in problems(EXACT | changes) if "exact_log_probs" in text]


def test_trainers_and_models_that_are_exact_are_taken_and_others_refused() -> None:
    assert said({}) == []
    assert said({"actor_train.strategy_args.strategy_name": "deepspeed_train"}) == []
    assert said({"actor_train.use_prefix_sharing": "on"}) == []
    assert WIDTH == WHOLE
    window = {"model_type": "gemma3_text", "layer_types": ["sliding_attention", "full_attention"], "sliding_window": 4}
    yarn = {"model_type": "qwen3", "rope_scaling": {"rope_type": "yarn", "factor": 2.0}}
    mixture = {"model_type": "qwen3_moe", "num_experts": 8}
    exact = ({"model_type": "llama"}, window, yarn, mixture)
    assert [of_model("actor_train", model) for model in exact] == [[]] * 4
    args = {"model_name_or_path": "m", "lora_target": "q_proj"}
    choice = Choice(ROLES["actor_train"], WorkerConfig.model_validate({"model_args": args}))
    (problem,) = exact_model_problems(choice, {"model_type": "qwen3_moe", "num_experts": 8})
    assert "which has experts, whose exact products know no adapters (lora_target)" in problem.text
    assert list(exact_model_problems(choice, {"model_type": "qwen3"})) == []
    answers = [list(picture_problems(config(EXACT | {KEY: exact}), "actor_train")) for exact in (True, False)]
    assert [any(text.startswith(f"{KEY}: true, but the rows show pictures") for text in each) for each in answers] == [
        True,
        False,
    ]


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


@cases("changes, message")
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


def of_model(role: str, model: dict[str, Any]) -> list[str]:
    choice = Choice(ROLES[role], WorkerConfig.model_validate({"model_args": {"model_name_or_path": "m"}}))
    return [problem.text for problem in exact_model_problems(choice, model)]


@cases("model, why")
def test_models_that_are_not_exact_are_refused_before_they_are_loaded(model: dict[str, Any], why: str) -> None:
    (text,) = of_model("actor_train", model)
    assert text.startswith("exact_log_probs: true with m (actor_train.model_args.model_name_or_path), wh")
    assert f" has {why}" in text
    assert text.endswith("Set exact_log_probs to false.") and len(of_model("reference", model)) == 1
    assert of_model("actor_infer", model) == of_model("critic", model) == [], "said of the trainer's, and not exact"


def test_the_plan_reads_the_model_and_says_it_once(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "doge", "num_experts": 8}))
    for exact in (True, False):
        report = machine_report(config(EXACT | {"pretrain": str(tmp_path), "exact_log_probs": exact}))
        assert sum("exact_log_probs" in problem.text for problem in report.problems) == int(exact)
