"""Arguments of engines and variables of their workers: what was tested passes, anything else must be let through."""

from pathlib import Path
from typing import Any

import pytest

from roll.configs.sections.cluster import WorkerConfig
from roll.configs.strategies.table import spec_of
from roll.configs.strategies.tested import argument_problems, refused_variables, rules
from roll.distributed.strategy.sglang import args as sglang_args
from roll.distributed.strategy.vllm import args as vllm_args
from tests.helpers.cases import cases
from tests.helpers.configs import config, problems, warnings_of

AT = "actor_infer.strategy_args"


def said(engine: str, given: dict[str, Any], role_name: str = "actor_infer", *allowed: str) -> list[str]:
    role = WorkerConfig.model_validate(
        {
            "model_args": {"model_name_or_path": "m", "dtype": "bf16"},
            "strategy_args": {
                "strategy_name": engine,
                "strategy_config": given,
                "allow_untested_arguments": list(allowed),
            },
        }
    )
    return [problem.text for problem in argument_problems(engine, role_name, role)]


@cases("engine, given, reason")
def test_a_wrong_value_is_refused_with_the_reason_even_if_it_is_let_through(
    engine: str, given: dict[str, Any], reason: str
) -> None:
    (text,) = said(engine, given, "actor_infer", *given)
    assert text.startswith(f"{AT}.strategy_config.{next(iter(given))} cannot be set: ") and reason in text


@cases("engine, name, value, reason")
def test_what_was_not_tested_is_refused_until_the_user_lets_it_through(
    engine: str, name: str, value: Any, reason: str
) -> None:
    (text,) = said(engine, {name: value})
    assert text.startswith(f"{AT}.strategy_config.{name} cannot be set: ") and reason in text
    assert text.endswith(f"or let it through: {AT}.allow_untested_arguments: [{name}].")
    assert said(engine, {name: value}, "actor_infer", name) == []


def test_the_plan_names_what_is_let_through_and_what_is_named_for_nothing() -> None:
    changes = {f"{AT}.strategy_name": "vllm", f"{AT}.strategy_config": {"enable_dbo": True}}
    allowed = changes | {f"{AT}.allow_untested_arguments": ["enable_dbo"]}
    assert any("enable_dbo cannot be set" in text for text in problems(changes))
    assert not any("enable_dbo" in text for text in problems(allowed))
    assert any("lets through what was not tested here: enable_dbo." in text for text in warnings_of(config(allowed)))


@cases("engine, given")
def test_values_that_change_nothing_pass(engine: str, given: dict[str, Any]) -> None:
    assert said(engine, given) == []


@pytest.mark.parametrize(
    "given, wanted",
    [
        ({"gpu_memory_utilization": 90}, "90 must be above 0 and at most 1."),
        ({"gpu_memory_utilization": "high"}, "'high' must be above 0 and at most 1."),
        ({"pipeline_parallel_size": 0}, "0 must be a whole number of at least 1."),
    ],
)
def test_shares_and_parallel_sizes_are_checked_before_the_plan_reads_them(given: dict[str, Any], wanted: str) -> None:
    (name,) = given
    assert said("vllm", given) == [f"{AT}.strategy_config.{name}: {wanted}"]
    assert any(wanted in text for text in problems({f"{AT}.strategy_config": given}))


def test_a_misspelt_argument_is_refused() -> None:
    (text,) = said("vllm", {"gpu_memory_utilisation": 0.8})
    assert text.startswith(f"{AT}.strategy_config.gpu_memory_utilisation") and "Did you mean gpu_memory_util" in text


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_random_weights_are_for_engines_that_a_trainer_sends_to(engine: str) -> None:
    (text,) = said(engine, {"load_format": "dummy"}, "rewards.judge")
    assert "no trainer sends weights to rewards.judge" in text


@cases("engine, name, value, reason")
def test_variables_that_are_wrong_or_not_tested_are_refused(engine: str, name: str, value: str, reason: str) -> None:
    ((key, why),) = refused_variables(engine, "actor_infer", {name: value})
    assert key == name and reason in why
    left = [*refused_variables(engine, "actor_infer", {name: value}, (name,))]
    assert (left == []) == ("let it through" in why)


@cases("engine, variables")
def test_variables_that_change_nothing_and_those_of_another_engine_pass(engine: str, variables: dict[str, str]) -> None:
    assert [*refused_variables(engine, "actor_infer", variables)] == []


def test_what_roll_sets_itself_is_fine_and_not_looked_for_in_a_workers_environment() -> None:
    """A worker has all of them in its environment, and so have the engine's own processes."""
    ours = {
        "vllm": [vllm_args.worker_environment(on_cpu, Path("/r")) for on_cpu in (False, True)],
        "sglang": [sglang_args.worker_environment(on_cpu, 2, Path("/r")) for on_cpu in (False, True)],
    }
    for engine, environments in ours.items():
        for environment in environments:
            of_image = {"CUDA_VISIBLE_DEVICES": "1", "RANK": "0", f"{engine.upper()}_OF_AN_IMAGE": "1"}
            assert [*refused_variables(spec_of(engine).tested, "r", environment | of_image, inherited=True)] == []
        theirs = {name for name, rule in rules(engine, "variables").items() if rule.ours} - {"VLLM_ASCEND_ENABLE_NZ"}
        common = {*rules("every_role", "variables")}
        assert theirs - common <= {name for environment in environments for name in environment}
