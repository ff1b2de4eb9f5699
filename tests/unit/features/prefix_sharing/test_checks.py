"""`use_prefix_sharing` in a plan: what it reads, and what it refuses."""

from typing import Any

import pytest

from roll.configs.sections.cluster import WorkerConfig
from roll.configs.strategies import packing
from roll.configs.strategies.choice import Choice
from roll.configs.tables.roles import ROLES
from roll.features.prefix_sharing.checks import obstacles, prefix_sharing_machine_problems
from roll.platforms.table import CUDA, ROCM
from roll.run.start.preflight import choices
from tests.helpers.cases import cases
from tests.helpers.configs import config, problems

SHARED = {"actor_train.use_prefix_sharing": "on"}
FSDP2 = {"actor_train.strategy_args.strategy_name": "fsdp2_train"}


def said(changes: dict[str, Any]) -> list[str]:
    return [text for text in problems(changes) if "use_prefix_sharing" in text]


@pytest.mark.parametrize(("given", "means"), [(True, "on"), (False, "off"), ("on", "on"), ("auto", "auto")])
def test_on_and_off_are_words_though_yaml_has_them_as_booleans(given: Any, means: str) -> None:
    worker = WorkerConfig(use_prefix_sharing=given)
    assert worker.use_prefix_sharing == means and worker.shares_prefixes == (means != "off")
    assert not worker.packs_rows, "how micro batches are cut stays as it is"
    assert WorkerConfig().use_prefix_sharing == "auto"


@cases("changes, message")
def test_what_is_not_exact_is_refused_by_name(changes: dict[str, Any], message: str) -> None:
    (text,) = said(SHARED | changes)
    assert text.startswith(f"actor_train.use_prefix_sharing: {message}")
    for mode in ("auto", "off"):
        assert said(SHARED | changes | {"actor_train.use_prefix_sharing": mode}) == []


@pytest.mark.parametrize("strategy", ["vllm", "hf_infer"])
def test_an_engine_that_samples_shares_nothing(strategy: str) -> None:
    """Of hf_infer too, which does where it scores."""
    (text,) = said({"actor_infer.use_prefix_sharing": "on", "actor_infer.strategy_args.strategy_name": strategy})
    assert text.startswith(f"actor_infer.use_prefix_sharing: on with {strategy}, which does not compute rows that")
    assert text.endswith("No strategy for actor_infer does. Set it to off.")


def test_plain_roles_and_windows_may_share() -> None:
    assert said(SHARED) == said(SHARED | FSDP2) == []
    kernel = {"actor_train.model_args.attn_implementation": "fa2"}
    assert said(kernel) == said(SHARED | kernel) == []
    assert list(obstacles(WorkerConfig.model_validate({"model_args": {"attn_implementation": "fa2"}}), learns=True))
    worker = WorkerConfig.model_validate({"model_args": {"lora_target": "all-linear", "lora_dropout": 0.1}})
    assert list(obstacles(worker, learns=True)) == ["model_args.lora_dropout"] and not obstacles(worker, learns=False)
    assert list(packing.model_problems(choice("on"), {"model_type": "mistral", "sliding_window": 99})) == []


def test_devices_without_kernels_are_refused_where_the_machine_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device_mapping counts slots where there are none."""
    found = [made for made in choices(config(SHARED)) if made.role.learns]
    assert [list(prefix_sharing_machine_problems(made)) for made in found] == [[]]
    monkeypatch.setattr("roll.features.prefix_sharing.checks.machine_platform", lambda: CUDA)
    assert list(prefix_sharing_machine_problems(found[0])) == []
    monkeypatch.setattr("roll.features.prefix_sharing.checks.machine_platform", lambda: ROCM)
    (problem,) = prefix_sharing_machine_problems(found[0])
    assert problem.text.startswith(
        "actor_train.use_prefix_sharing: on: prefix sharing works on NVIDIA's GPUs and on CPUs, and this machine has "
        "devices of platform rocm."
    )
    others = choices(config({"actor_train.use_prefix_sharing": "auto"}))
    assert [list(prefix_sharing_machine_problems(made)) for made in others] == [[]] * len(others)


def choice(mode: str, longest: int = 100) -> Choice:
    worker = {"model_args": {"model_name_or_path": "m"}, "use_prefix_sharing": mode}
    return Choice(ROLES["actor_train"], WorkerConfig.model_validate(worker), longest=longest)


@cases("model, why")
def test_models_whose_rows_would_be_other_ones_are_refused_before_they_are_loaded(
    model: dict[str, Any], why: str
) -> None:
    (problem,) = packing.model_problems(choice("on"), model)
    assert problem.text.startswith("actor_train.use_prefix_sharing: on with m, ") and why in problem.text
    assert list(packing.model_problems(choice("auto"), model)) == []
