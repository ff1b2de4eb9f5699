"""A plan knows whether the installed engine has a model's architecture, without importing the engine."""

import json
import sys
from pathlib import Path

import pytest

from roll.run.start import engine_models
from roll.run.start.engine_models import NOTHING, Registry, sglang_registry, vllm_registry
from roll.run.start.preflight import choices, machine_report, role_strategy_warnings
from roll.utils.imports import is_installed
from tests.helpers.cases import cases
from tests.helpers.configs import config

REGISTRY = """
import torch
_TEXT_GENERATION_MODELS = {
    # a comment
    "LlamaForCausalLM": ("llama", "LlamaForCausalLM"),
    "PhiForCausalLM": ("phi", "PhiForCausalLM"),
}
_EMBEDDING_MODELS = {"BertModel": ("bert", "B"), **{k: v for k, v in _TEXT_GENERATION_MODELS.items()}}
_VLLM_MODELS = {**_TEXT_GENERATION_MODELS, **_EMBEDDING_MODELS}
_PREVIOUSLY_SUPPORTED_MODELS = {"QWenLMHeadModel": "0.23.0"}
_OOT_SUPPORTED_MODELS = {"BartModel": "https://example.org/plugin"}
"""
ENTRIES = {
    "llama.py": "class Llama: ...\nEntryClass = [\n    LlamaForCausalLM,  # and its kin\n    PhiForCausalLM,\n]\n",
    "olmo.py": "EntryClass = OlmoForCausalLM\n",
    "utils.py": "entry = EntryClass\n",
}


def test_registries_are_read_as_text(tmp_path: Path) -> None:
    models = tmp_path / "model_executor" / "models"
    models.mkdir(parents=True)
    (models / "registry.py").write_text(REGISTRY)
    known = frozenset({"LlamaForCausalLM", "PhiForCausalLM", "BertModel"})
    assert vllm_registry(tmp_path) == Registry(known, {"QWenLMHeadModel": "0.23.0"})
    models = tmp_path / "srt" / "models"
    models.mkdir(parents=True)
    for name, text in ENTRIES.items():
        (models / name).write_text(text)
    known = frozenset({"LlamaForCausalLM", "PhiForCausalLM", "OlmoForCausalLM"})
    assert sglang_registry(tmp_path) == Registry(known, {})


@pytest.mark.parametrize("text", ["", "_MODELS = [1]", "not python ("])
def test_files_of_another_form_say_nothing(text: str, tmp_path: Path) -> None:
    assert vllm_registry(tmp_path) == sglang_registry(tmp_path) == NOTHING
    (tmp_path / "model_executor" / "models").mkdir(parents=True)
    (tmp_path / "model_executor" / "models" / "registry.py").write_text(text)
    assert vllm_registry(tmp_path) == NOTHING


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_the_installed_engines_have_the_usual_families(engine: str) -> None:
    if not is_installed(engine):
        pytest.skip(f"{engine} is not installed")
    imported = set(sys.modules)
    registry = engine_models.installed(engine)
    assert len(registry.known) > 100
    assert {"LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM", "GptOssForCausalLM"} <= registry.known
    assert engine not in set(sys.modules) - imported


def told(
    folder: Path, monkeypatch: pytest.MonkeyPatch, kinds: list[str], model_type: str, engine: str = "vllm"
) -> tuple[list[str], list[str]]:
    """Problems and warnings about the engine."""
    (folder / "config.json").write_text(json.dumps({"model_type": model_type, "architectures": kinds}))
    registry = Registry(frozenset({"LlamaForCausalLM"}), {"QWenLMHeadModel": "0.23.0"})
    monkeypatch.setattr(engine_models, "installed", lambda name: registry)
    made = config({"pretrain": str(folder), "track_with": "jsonl", "actor_infer.strategy_args.strategy_name": engine})
    problems = [problem.text for problem in machine_report(made).problems if "nor transformers" in problem.text]
    return problems, [text for text in role_strategy_warnings(made) if "does not implement" in text]


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_an_architecture_that_nobody_has_is_refused_before_engines_start(
    engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    problems, warnings = told(tmp_path, monkeypatch, ["NovelForCausalLM"], "novel", engine)
    (text,) = problems
    assert text.startswith("actor_infer.strategy_args.strategy_name: neither the installed ")
    assert f"NovelForCausalLM, the architecture of {tmp_path}. Install" in text and warnings == []


def test_one_that_the_engine_had_is_told_with_its_last_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ((text,), _) = told(tmp_path, monkeypatch, ["QWenLMHeadModel"], "qwen")
    assert "vLLM 0.23.0 was the last with it" in text


def test_one_of_transformers_alone_is_warned_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    problems, (text,) = told(tmp_path, monkeypatch, ["OlmoForCausalLM"], "olmo")
    assert problems == [] and text.startswith("actor_infer: the installed vLLM does not implement OlmoFor")


@cases("kinds, model_type, engine")
def test_of_others_nothing_is_said(
    kinds: list[str], model_type: str, engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert told(tmp_path, monkeypatch, kinds, model_type, engine) == ([], [])


def test_plugins_of_the_engine_may_bring_any(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_models, "_has_plugins", lambda engine: True)
    assert told(tmp_path, monkeypatch, ["NovelForCausalLM"], "novel") == ([], [])


@cases("kind, settings, words")
def test_a_model_with_states_is_refused_where_vllm_on_a_cpu_ends(
    kind: str, settings: dict[str, object], words: str, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind}))
    engine = {"strategy_name": "vllm", "strategy_config": settings}
    report = machine_report(config({"pretrain": str(tmp_path), "actor_infer.strategy_args": engine}))
    found = [problem for problem in report.problems if "on a CPU" in problem.text]
    assert len(found) == bool(words) and all(words in problem.text and problem.of == "place" for problem in found)


@cases("kind, use")
def test_an_engine_that_cannot_sample_either_is_not_advised(kind: str, use: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind}))
    report = machine_report(config({"pretrain": str(tmp_path), "actor_infer.strategy_args.strategy_name": "vllm"}))
    (text,) = [problem.text for problem in report.problems if f"cannot sample from {kind} models" in problem.text]
    assert text.endswith(use)


@cases("kind, settings, is_said")
def test_sglang_has_to_take_a_kernel_that_caps_attention(
    kind: str, settings: dict[str, object], is_said: bool, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind}))
    strategy = {"strategy_name": "sglang", "strategy_config": settings}
    report = machine_report(config({"pretrain": str(tmp_path), "actor_infer.strategy_args": strategy}))
    found = [problem.text for problem in report.problems if "soft cap on attention of" in problem.text]
    assert len(found) == is_said
    assert all("attention_backend is not fa3, flashinfer, triton or aiter: " in text for text in found)


@pytest.mark.parametrize(
    ("kind", "said"),
    [("lfm2", "transformers has no value head for lfm2 models"), ("qwen2", ""), ("qwen3_next", ""), ("own_type", "")],
)
def test_a_critic_of_a_type_without_a_value_head_is_refused_by_the_plan(kind: str, said: str) -> None:
    critic = {"critic.device_mapping": [3], "critic.strategy_args.strategy_name": "deepspeed_train"}
    given = config(critic | {"adv_estimator": "gae"})
    choice = next(each for each in choices(given) if each.role.name == "critic")
    model = {"model_type": kind} | ({"auto_map": {"AutoModel": "own.Model"}} if kind == "own_type" else {})
    found = [problem.text for problem in engine_models.headless_model_problems(choice, model)]
    assert bool(found) == bool(said)
    assert all(said in text and "or an adv_estimator without a critic" in text for text in found)


def test_a_table_of_heads_in_another_form_refuses_nothing(tmp_path: Path) -> None:
    assert engine_models._types_with(tmp_path, "TOKEN_CLASSIFICATION") == frozenset()


@pytest.mark.parametrize(("kind", "asked"), [("glm4v", "attention_bias"), ("qwen3_vl_moe", "norm_topk_prob")])
@pytest.mark.parametrize("engine", ["vllm", "hf_infer"])
def test_keys_that_vllm_goes_by_are_asked_for(kind: str, asked: str, engine: str, tmp_path: Path) -> None:
    def told(text: dict[str, object]) -> list[str]:
        (tmp_path / "config.json").write_text(
            json.dumps({"model_type": kind, "text_config": text, "vision_config": {"depth": 1}})
        )
        given = {"pretrain": str(tmp_path), "actor_infer.strategy_args.strategy_name": engine}
        return [problem.text for problem in machine_report(config(given)).problems if asked in problem.text]

    assert told({asked: True}) == []
    found = [*told({}), *told({asked: False})]
    assert len(found) == (2 if engine == "vllm" else 0)
    assert all(f"config.json of {tmp_path} has no text_config.{asked}: true" in text for text in found)
