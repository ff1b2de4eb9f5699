"""The strategy table: who may run what, and what is missing for it."""

from typing import Any

import pytest

from roll.configs.sections.cluster import WorkerConfig
from roll.configs.strategies.choice import Choice
from roll.configs.strategies.spec import Package, StrategySpec
from roll.configs.strategies.table import STRATEGIES
from roll.configs.tables.roles import ACTOR_INFER, ACTOR_TRAIN, ROLES
from roll.distributed.strategy.table import engine_problems, serving, strategy_problems
from tests.helpers.cases import cases
from tests.helpers.configs import problems


def worker(name: str | None, **settings: Any) -> WorkerConfig:
    strategy = {"strategy_args": {"strategy_name": name}} if name else {}
    return WorkerConfig.model_validate(strategy | settings)


@cases("role, name, message")
def test_a_strategy_that_cannot_run_a_role_is_refused_with_those_that_can(
    role: str, name: str | None, message: str
) -> None:
    found = [problem.text for problem in strategy_problems(Choice(ROLES[role], worker(name)))]
    assert len(found) == 1 and found[0].startswith(message)


def test_only_engines_with_tensor_parallelism_take_several_devices_per_worker() -> None:
    given = {"device_mapping": [0, 1], "num_gpus_per_worker": 2}
    assert list(strategy_problems(Choice(ACTOR_INFER, worker("vllm", **given)))) == []
    found = list(strategy_problems(Choice(ACTOR_TRAIN, worker("deepspeed_train", **given))))
    assert len(found) == 1
    assert found[0].text == (
        "actor_train.num_gpus_per_worker: 2 with deepspeed_train, which does not use several devices for one worker. "
        "No strategy for actor_train does. Remove it."
    )


@pytest.mark.parametrize("name", ["megatron_train", "deepspeed_train", "fsdp2_train"])
def test_trainers_take_no_fp16(name: str) -> None:
    (problem,) = strategy_problems(Choice(ACTOR_TRAIN, worker(name, model_args={"dtype": "fp16"})))
    assert problem.keys == ("actor_train.model_args.dtype",)


@cases("name, setting, message")
def test_a_rollout_engines_own_settings_are_checked_before_it_starts(
    name: str, setting: dict[str, Any], message: str
) -> None:
    given = worker(None, strategy_args={"strategy_name": name, "strategy_config": setting})
    (problem,) = strategy_problems(Choice(ACTOR_INFER, given))
    assert problem.text == f"actor_infer.strategy_args.strategy_config.{message}"


def test_a_missing_package_comes_with_its_install_line(monkeypatch: pytest.MonkeyPatch) -> None:
    packages = (Package("roll_no_such_package", "vllm"),)
    spec = StrategySpec("vllm", {"generate": "x:Y"}, packages=packages)
    monkeypatch.setattr("roll.configs.strategies.table.STRATEGIES", {"vllm": spec})
    assert [problem.text for problem in engine_problems(Choice(ACTOR_INFER, worker("vllm")))] == [
        "actor_infer.strategy_args.strategy_name: vllm needs the package roll_no_such_package, which is not installed. "
        'Install it: pip install -e ".[vllm]"'
    ]


def test_every_role_has_a_strategy_and_unknown_ones_are_told() -> None:
    for spec in STRATEGIES.values():
        for path in spec.classes.values():
            module, _, name = path.partition(":")
            assert module.startswith("roll.distributed.strategy.") and name.isidentifier()
    for role in ROLES.values():
        assert serving(role.use)
    assert problems({"actor_infer.strategy_args.strategy_name": "vlm"})[0].startswith(
        "actor_infer.strategy_args.strategy_name: unknown strategy 'vlm'. Did you mean vllm?"
    )
