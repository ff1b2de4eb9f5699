"""Limits of numbers, keys whose switch is off, and hooks of a pipeline of one's own."""

import math
from pathlib import Path
from typing import Any

import pytest

from roll.configs.checks.rl import config_warnings
from roll.configs.checks.roles import AGENTIC, RL, RLVR, ROLE, run_warnings, switched_off
from roll.configs.plan.batch_plan import build_plan
from roll.configs.problems import call_hook, hook_findings
from roll.errors import ConfigError
from roll.pipeline.agentic.agentic_config import AgenticConfig
from roll.pipeline.rlvr.rlvr_checks import rlvr_warnings
from roll.pipeline.rlvr.rlvr_config import RLVRConfig
from tests.helpers.cases import cases
from tests.helpers.configs import config, problems
from tests.helpers.pages import importable

ARGS = "actor_train.training_args"


@pytest.mark.parametrize("value", [math.inf, math.nan])
@cases("key")
def test_no_number_is_infinite_or_none(key: str, value: float) -> None:
    assert [text for text in problems({key: value}) if text.startswith(f"{key}: {value!r} must be a finite number.")]


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("seed", 2**32, "seed: 4294967296 must be less than or equal to 4294967295."),
        ("num_return_sequences_in_group", 8_000_000_000, "must be less than or equal to 1000000."),
        ("actor_train.device_mapping", "list(range(10**3))", "is not a whole number"),
        (f"{ARGS}.learning_rate", 11, f"{ARGS}.learning_rate: 11 must be less than or equal to 10."),
        (
            "actor_infer.generating_args.stop_token_ids",
            [-1],
            "stop_token_ids[0]: -1 must be greater than or equal to 0.",
        ),
        (f"{ARGS}.lr_scheduler_kwargs.min_lr_ratio", 2, "min_lr_ratio: 2 must be less than or equal to 1."),
    ],
)
def test_a_number_beyond_its_limit_is_refused_with_the_limit(key: str, value: Any, message: str) -> None:
    assert [text for text in problems({key: value}) if key in text and message in text]


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
        assert isinstance(made.value(switch), bool | int | float | dict)
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
