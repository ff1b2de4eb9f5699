"""A plan knows models that an engine fails with, without importing the engine."""

import json
from pathlib import Path

import pytest

from roll.run.start.preflight import machine_report
from tests.helpers.cases import cases
from tests.helpers.configs import config


@cases("kind, settings, words")
def test_a_model_with_states_is_refused_where_vllm_on_a_cpu_ends(
    kind: str, settings: dict[str, object], words: str, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind}))
    engine = {"strategy_name": "vllm", "strategy_config": settings}
    report = machine_report(config({"pretrain": str(tmp_path), "actor_infer.strategy_args": engine}))
    found = [problem for problem in report.problems if "on a CPU" in problem.text]
    assert len(found) == bool(words) and all(words in problem.text and problem.of == "place" for problem in found)


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
