"""`optimizer_from`: what is refused before anything starts."""

from dataclasses import replace
from pathlib import Path

import pytest

from roll.configs.plan.batch_plan import build_plan
from roll.configs.strategies.table import STRATEGIES, required_facts
from roll.distributed.strategy.saved_facts import SavedFacts
from roll.errors import ConfigError
from roll.run.saving.optimizer_from import check_optimizer_from
from tests.helpers.configs import config, problems

KEY = "actor_train.training_args.optimizer_from"


def test_a_strategy_that_cannot_and_adapters_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert problems({KEY: "at"}) == []
    specs = {**STRATEGIES, "fsdp2_train": replace(STRATEGIES["fsdp2_train"], supports=frozenset())}
    monkeypatch.setattr("roll.configs.strategies.table.STRATEGIES", specs)
    monkeypatch.setattr("roll.distributed.strategy.table.STRATEGIES", specs)
    (said,) = problems({KEY: "at", "actor_train.strategy_args": {"strategy_name": "fsdp2_train"}})
    assert said == (
        f"{KEY}: at with fsdp2_train, which does not begin with the optimizer of another run. Supported by: "
        "deepspeed_train, megatron_train. Use one of them, or remove it, and a fresh one is made."
    )
    (said,) = problems({KEY: "at", "actor_train.model_args.lora_target": "all-linear"})
    assert said.startswith(f"{KEY}: does not work with lora_target: the run trains new adapters")


def test_a_folder_without_a_state_and_a_state_of_another_form_are_refused(tmp_path: Path) -> None:
    made = config({KEY: str(tmp_path)})
    plan = build_plan(made)
    with pytest.raises(ConfigError, match=f"{KEY}: .* holds no state of a role that learns: .* Name a role's folder"):
        check_optimizer_from(made, plan)
    facts = required_facts(made.actor_train, 2)
    SavedFacts(facts).write(tmp_path)
    check_optimizer_from(made, plan)
    SavedFacts(facts | {"dtype": "fp32"}).write(tmp_path)
    with pytest.raises(ConfigError, match=f"{KEY}: {tmp_path} was saved with dtype 'fp32' .now '.*'., to which"):
        check_optimizer_from(made, plan)


def test_a_run_that_takes_nothing_over_is_asked_nothing() -> None:
    made = config({})
    check_optimizer_from(made, build_plan(made))
