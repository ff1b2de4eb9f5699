"""Limits of numbers, keys whose switch is off, and hooks of a pipeline of one's own."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from roll.configs.base import LARGEST_SEED, Settings, nested_class
from roll.configs.checks.rl import config_warnings
from roll.configs.checks.roles import AGENTIC, RL, RLVR, ROLE, run_warnings, switched_off
from roll.configs.plan.batch_plan import build_plan, divisors_near
from roll.configs.problems import call_hook, hook_findings
from roll.errors import ConfigError
from roll.pipeline.agentic.agentic_config import AgenticConfig
from roll.pipeline.rlvr.rlvr_checks import rlvr_warnings
from roll.pipeline.rlvr.rlvr_config import RLVRConfig
from tests.helpers.cases import cases
from tests.helpers.configs import config, problems
from tests.helpers.pages import importable

ARGS = "actor_train.training_args"


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
@cases("key")
def test_no_number_is_infinite_or_none(key: str, value: float) -> None:
    assert [text for text in problems({key: value}) if text.startswith(f"{key}: {value!r} must be a finite number.")]


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("seed", 2**32, "seed: 4294967296 must be at most 4294967295."),
        ("max_steps", 1e31, "max_steps: 1e+31 must be"),
        ("num_return_sequences_in_group", 8_000_000_000, "must be at most 1000000."),
        ("rollout_batch_size", 10**40, "rollout_batch_size: 1000"),
        ("num_gpus_per_node", 1e40, "num_gpus_per_node: 1e+40 must be"),
        ("num_nodes", 2**31, "num_nodes: 2147483648 must be at most 100000."),
        ("rewards.math.world_size", 2**63 - 1, "rewards.math.world_size: 9223372036854775807 must be at most 10000."),
        ("actor_train.device_mapping", [10**40], "is beyond the limit of 1000000 devices"),
        ("actor_train.device_mapping", "list(range(10**3))", "is not a whole number"),
        ("actor_train.device_mapping", f"list(range(0, {10**40}))", "names more than 1000000 devices"),
        (f"{ARGS}.learning_rate", 11, f"{ARGS}.learning_rate: 11 must be at most 10."),
        ("kl_loss_coef", 1e308, "kl_loss_coef: 1e+308 must be at most 1e+09."),
        ("actor_infer.generating_args.stop_token_ids", [-1], "stop_token_ids[0]: -1 must be at least 0."),
        (f"{ARGS}.lr_scheduler_kwargs.min_lr_ratio", 2, "min_lr_ratio: 2 must be at most 1."),
    ],
)
def test_a_number_beyond_its_limit_is_refused_with_the_limit(key: str, value: Any, message: str) -> None:
    assert [text for text in problems({key: value}) if key in text and message in text]


def test_seeds_have_a_limit_and_divisors_are_found_at_once() -> None:
    np.random.RandomState(LARGEST_SEED)
    with pytest.raises(ValueError):
        np.random.RandomState(LARGEST_SEED + 1)
    assert divisors_near(7, 32) == [4, 8]
    assert divisors_near(999_983, 10**12) == [800_000, 1_000_000]


def _numbers(cls: type[Settings], path: str = "") -> list[tuple[str, list[Any]]]:
    """(path, limits) of every setting that holds a number."""
    found: list[tuple[str, list[Any]]] = []
    for key, field in cls.model_fields.items():
        inner = nested_class(field.annotation)
        if inner is not None:
            found += _numbers(inner, f"{path}{key}.")
        elif field.annotation in (int, float, int | None):
            found.append((f"{path}{key}", [m for m in field.metadata if hasattr(m, "le") or hasattr(m, "lt")]))
    return found


@pytest.mark.parametrize("cls", [RLVRConfig, AgenticConfig])
def test_every_number_that_does_something_has_an_upper_limit(cls: type[Settings]) -> None:
    assert [path for path, limits in _numbers(cls) if not limits] == []


def said(changes: dict[str, Any]) -> list[str]:
    made = config(changes)
    found = [*run_warnings(made, build_plan(made)), *config_warnings(made), *rlvr_warnings(made)]
    return [text for text in found if " nothing" in text]


@cases("changes, text")
def test_a_key_whose_switch_is_off_is_named(changes: dict[str, Any], text: str) -> None:
    assert text in said(changes)


def test_with_its_switch_on_it_is_not() -> None:
    keys = {
        "difficulty_mask": True,
        "rewards.math.dynamic_timeout": {"enable": True, "ratio": 2.0},
        "difficulty_low_threshold": 0.2,
        "actor_train.use_dynamic_batching_in_train": True,
        "actor_train.max_tokens_per_microbatch_in_train": 9000,
        "rewards.math.query_filter_config": {"type": "std_filter", "filter_args": {"std_threshold": 0.1}},
        "is_use_additional_prompts": True,
    }
    assert said(keys) == said({}) == []


@pytest.mark.parametrize(
    ("cls", "switches"), [(RLVRConfig, RL), (RLVRConfig, RLVR), (AgenticConfig, RL), (AgenticConfig, AGENTIC)]
)
def test_every_key_of_the_tables_is_one_of_the_settings(cls: type, switches: dict[str, tuple[str, ...]]) -> None:
    made = config() if cls is RLVRConfig else AgenticConfig()
    for switch, keys in switches.items():
        assert made.value(switch) in (True, False)
        assert [key for key in keys if made.is_changed(key)] == []
    assert list(switched_off(config().actor_train, ROLE)) == []


CODE = """
from roll.errors import ConfigError
def number(text): return int(text)
def refuses(text): raise ConfigError("the text is wrong")
def leaves(text): raise SystemExit(text)
def letters(text):
    for letter in text:
        yield letter.upper()
"""


@pytest.fixture(autouse=True)
def hooks(tmp_path: Path):
    (tmp_path / "my_hooks.py").write_text(CODE)
    with importable(tmp_path):
        yield


def test_findings_come_through_and_exceptions_are_told() -> None:
    assert call_hook("strategy s", "my_hooks:number", int, "7") == 7
    assert hook_findings("strategy s", "my_hooks:letters", str, "ab") == ["A", "B"]
    with pytest.raises(ConfigError, match=r"my_hooks:letters raised AttributeError: .* \(my_hooks.py, line 8\)"):
        hook_findings("s", "my_hooks:letters", str, ["a", 2])
    with pytest.raises(AttributeError):
        call_hook("s", "roll.configs.problems:nearest", str, None, [])


@cases("path, argument, message")
def test_what_it_raises_or_gives_instead_is_told_with_its_path(path: str, argument: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        call_hook("s", path, int, argument)
