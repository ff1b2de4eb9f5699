"""What strategies compile, fuse and optimise with."""

from typing import Any

import pytest

from roll.configs.checks import training as fused_head
from roll.configs.checks import training as optimizers
from roll.configs.checks.training import (
    fused_head_machine_problems,
    moment_bytes,
    optimizer_machine_problems,
)
from roll.configs.memory.flops import peak_flops
from roll.configs.plan.batch_plan import build_plan
from roll.run.start.preflight import choices, machine_report
from tests.helpers.cases import cases
from tests.helpers.configs import checked, config, problems

NAME, SETTINGS = (f"actor_train.strategy_args.strategy_{key}" for key in ("name", "config"))
EIGHT_BIT = {"actor_train.training_args.optim": "adamw_8bit"}
COMPILED, MUON = {"actor_train.use_torch_compile": True}, {"actor_train.training_args.optim": "muon"}
STAGE_3 = {f"{SETTINGS}.zero_optimization.stage": 3}


@cases("changes, said")
def test_what_a_strategy_cannot_do_is_refused(changes: dict[str, Any], said: str) -> None:
    found = problems(changes)
    assert len(found) == 1 and said in found[0], found


def test_what_it_can_do_passes_and_words_of_others_are_taken() -> None:
    assert problems(COMPILED) == problems(COMPILED | MUON | {NAME: "fsdp2_train"}) == []
    assert problems(MUON | {"actor_train.model_args.dtype": "fp32"}) == []
    given = {"actor_train.model_args": {"use_torch_compile": True}, "actor_train.training_args.optim": "adamw"}
    found = checked(given).config
    assert found is not None and found.actor_train.use_torch_compile
    assert found.actor_train.training_args.optim == "adamw_torch"


def test_an_optimizer_of_8_bits_passes_and_needs_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    for strategy in ({}, STAGE_3, {NAME: "fsdp2_train", SETTINGS: {}}):
        assert problems(EIGHT_BIT | strategy) == []
    learns, scores = (choices(config(EIGHT_BIT))[place] for place in (0, -1))
    assert learns.role.learns and learns.worker.training_args.optim == "adamw_bnb_8bit" and not scores.role.learns
    monkeypatch.setattr(optimizers, "is_installed", lambda name: False)
    (said,) = optimizer_machine_problems(learns)
    assert said.text.startswith(
        "actor_train.training_args.optim: adamw_bnb_8bit needs the package bitsandbytes, which is not installed. "
        "Install it: pip install 'bitsandbytes>=0.49'"
    )
    assert not list(optimizer_machine_problems(scores))
    assert said.text in [problem.text for problem in machine_report(config(EIGHT_BIT)).problems]
    monkeypatch.setattr(optimizers, "is_installed", lambda name: name == "bitsandbytes")
    assert not list(optimizer_machine_problems(learns))


def test_moments_of_8_bits_and_optimizers_in_host_memory_are_counted() -> None:
    """By hand: 100,000 elements are 391 blocks; tensors below 4,096 elements keep fp32."""
    assert moment_bytes("adamw_bnb_8bit", 100_000) == 2 * 100_000 + 2 * 4 * 391
    assert moment_bytes("adamw_bnb_8bit", 4095) == 8 * 4095
    assert moment_bytes("adamw_torch", 100_000) == 800_000
    plans = [build_plan(config(given)) for given in ({}, {"is_offload_optimizer_states_in_train_step": True})]
    assert [plan.trains["actor_train"].optimizer_waits for plan in plans] == [False, True]


KEY = "actor_train.model_args.fused_kernel_options"
CCE = {f"{KEY}.impl_backend": "cut_cross_entropy"}


@cases("changes, said")
def test_settings_that_cannot_work_are_refused(changes: dict[str, Any], said: str) -> None:
    found = problems(changes)
    assert len(found) == 1 and said in found[0], found


def test_every_trainer_takes_the_number_of_logits() -> None:
    for name in ("deepspeed_train", "fsdp2_train", "megatron_train"):
        assert problems({f"{KEY}.logits_per_chunk": 1000, "actor_train.strategy_args.strategy_name": name}) == []


def test_a_package_or_a_gpu_that_is_missing_is_told_before_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    assert problems(CCE) == []
    choice = next(choice for choice in choices(config(CCE)) if choice.role.learns)
    monkeypatch.setattr(fused_head, "is_installed", lambda module: False)
    monkeypatch.setattr(fused_head, "on_gpus_here", lambda: False)
    assert [problem.text for problem in fused_head_machine_problems(choice)] == [
        f"{KEY}.impl_backend: cut_cross_entropy needs the package cut_cross_entropy, which is not installed. Install "
        "it: pip install cut-cross-entropy",
        f"{KEY}.impl_backend: cut_cross_entropy runs on GPUs only, and this machine has none. Use torch.",
    ]
    assert not list(fused_head_machine_problems(next(c for c in choices(config()) if c.role.learns)))


@cases("name, tflops")
def test_devices_are_known_by_their_names(name: str, tflops: float) -> None:
    assert peak_flops(name) == pytest.approx(tflops * 1e12)


@pytest.mark.parametrize("name", ["NVIDIA RTX A4000", "NVIDIA A10G", "NVIDIA H100X", "NVIDIA GeForce RTX 4090 D", ""])
def test_what_is_not_in_the_table_is_not_guessed(name: str) -> None:
    assert peak_flops(name) is None
