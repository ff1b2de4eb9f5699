"""Environment variables of workers: what system_envs may set, and what a shell may leave to them."""

from typing import Any

import pytest

from roll.configs.checks.variables import inherited_problems, variable_problems
from roll.run.spec import PipelineSpec
from roll.run.start.start_checks import start_problems
from tests.helpers.cases import cases
from tests.helpers.configs import config, problems

ENGINE = "actor_infer.strategy_args.strategy_name"
REFERENCE = {"reference.strategy_args": {"strategy_name": "hf_infer"}, "use_kl_loss": True}


def said(changes: dict[str, Any]) -> list[str]:
    return [problem.text for problem in variable_problems(config(changes))]


@cases("changes, start")
def test_variables_are_refused_by_the_key_that_sets_them_and_once(changes: dict[str, Any], start: str) -> None:
    (text,) = said(changes)
    assert text.startswith(start)
    assert text in problems(changes), "among the problems of a plan"


@cases("changes")
def test_what_reaches_no_role_that_it_would_change_passes(changes: dict[str, Any]) -> None:
    assert said(changes) == []


def test_a_role_and_the_run_each_name_their_own_key() -> None:
    changes = {
        "system_envs.NVIDIA_TF32_OVERRIDE": "1",
        "actor_infer.system_envs.NVIDIA_TF32_OVERRIDE": "2",
        **REFERENCE,
    }
    keys = [text.partition(" ")[0] for text in said(changes)]
    assert keys == ["system_envs.NVIDIA_TF32_OVERRIDE", "actor_infer.system_envs.NVIDIA_TF32_OVERRIDE"]


@pytest.mark.parametrize("role", ["actor_train", "actor_infer"])
def test_both_ends_of_a_broadcast_must_agree_about_nccl(role: str) -> None:
    (text,) = said({f"{role}.system_envs.NCCL_ALGO": "Ring"})
    assert "NCCL_ALGO is Ring" in text and "is not set" in text and text.endswith("Set system_envs.NCCL_ALGO.")
    assert said({f"{role}.system_envs.NCCL_IB_HCA": "mlx5"}) == []
    assert said({f"{role}.system_envs.NCCL_ALGO": "Ring", "actor_infer.device_mapping": [1]}) == []


def test_what_a_shell_leaves_to_workers_is_said_before_they_start() -> None:
    shell = {"VLLM_USE_MODELSCOPE": "True", "NVIDIA_TF32_OVERRIDE": "1", "CUDA_VISIBLE_DEVICES": "0", "RANK": "3"}
    first, second = inherited_problems(config({}), shell)
    assert first.text.startswith("NVIDIA_TF32_OVERRIDE is set in the shell or image, and actor_train would inherit it:")
    assert second.text.startswith("VLLM_USE_MODELSCOPE is set in the shell or image, and actor_infer would inherit")
    assert {problem.of for problem in (first, second)} == {"machine"}, "a plan is often made elsewhere"
    replaced = {
        "system_envs": {"NVIDIA_TF32_OVERRIDE": "0"},
        "actor_infer.system_envs": {"VLLM_USE_MODELSCOPE": ""},
    }
    assert [*inherited_problems(config(replaced), shell)] == []


@pytest.mark.parametrize(("address", "found"), [(None, 1), ("", 1), ("local", 1), ("10.0.0.1:6379", 0)])
def test_a_start_looks_at_its_own_shell_unless_workers_are_of_a_cluster(
    address: str | None, found: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_USE_MODELSCOPE", "True")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    if address is not None:
        monkeypatch.setenv("RAY_ADDRESS", address)
    spec = PipelineSpec("rlvr", "", "")
    texts = [problem.text for problem in start_problems(spec, config({}), is_plan=True)]
    assert len([text for text in texts if text.startswith("VLLM_USE_MODELSCOPE is set in the shell")]) == found
