"""use_torch_compile and optim before anything starts: who can, and what a machine must have."""

from typing import Any

import pytest

from roll.configs import compiling
from roll.configs.compiling import compile_machine_problems
from roll.configs.plan.batch_plan import build_plan
from roll.pipeline.preflight import choices
from tests.helpers.configs import checked, config, problems

NAME, SETTINGS = (f"actor_train.strategy_args.strategy_{key}" for key in ("name", "config"))
COMPILED, MUON = {"actor_train.use_torch_compile": True}, {"actor_train.training_args.optim": "muon"}
STAGE_3 = {f"{SETTINGS}.zero_optimization.stage": 3}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            COMPILED | {NAME: "megatron_train"},
            "actor_train.use_torch_compile: megatron_train compiles nothing. Strategies that do: deepspeed_train, "
            "fsdp2_train. Or remove it.",
        ),
        (COMPILED | STAGE_3, f"actor_train.use_torch_compile: true with {SETTINGS}.zero_optimization.stage: 3, which "),
        (MUON, "actor_train.training_args.optim: muon needs whole matrices, and ZeRO and bf16 lay weights end to end"),
        (MUON | {NAME: "megatron_train"}, "actor_train.training_args.optim: muon with megatron_train, which has Adam"),
        (
            MUON | {NAME: "fsdp2_train", f"{SETTINGS}.offload_policy": True},
            "actor_train.training_args.optim: muon gathers matrices between the ranks, and offload_policy keeps them ",
        ),
    ],
    ids=["megatron", "zero-3", "muon-bf16", "muon-megatron", "muon-offload"],
)
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


def test_an_optimizer_waits_in_host_memory_if_the_run_says_so() -> None:
    plans = [build_plan(config(given)) for given in ({}, {"is_offload_optimizer_states_in_train_step": True})]
    assert [plan.trains["actor_train"].optimizer_waits for plan in plans] == [False, True]


def test_a_compiler_that_is_missing_is_told_before_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    choice = next(choice for choice in choices(config(COMPILED)) if choice.role.learns)
    monkeypatch.setattr(compiling.Path, "glob", lambda *given: iter(()))
    monkeypatch.setattr(compiling.shutil, "which", lambda name: "/usr/bin/g++" if name == "g++" else None)
    assert not list(compile_machine_problems(choice))
    monkeypatch.setattr(compiling.shutil, "which", lambda name: None)
    assert "there is no compiler (g++, clang++, c++, or CXX)" in next(iter(compile_machine_problems(choice))).text
