"""`algorithm: NAME` fills in keys, and what a YAML says itself stays."""

import re
from pathlib import Path
from typing import Any

import pytest

from roll.configs.load.validate import validate
from roll.configs.plan.batch_plan import build_plan
from roll.configs.plan.describe_learning import algorithm_rows
from roll.configs.tables.presets import PRESETS
from roll.pipeline.dpo.dpo_config import DPOConfig
from roll.pipeline.rlvr.rlvr_config import RLVRConfig
from roll.pipeline.sft.sft_config import SFTConfig
from tests.helpers.configs import tree, warnings_of

RL = [name for name, preset in PRESETS.items() if preset.pipeline == "rl"]
PAGE = Path(__file__).parents[3] / "docs" / "algorithms.md"


def config(changes: dict[str, Any]) -> RLVRConfig:
    checked = validate(RLVRConfig, tree({"adv_estimator": ..., **changes}))
    assert checked.config is not None, checked.problems
    return checked.config


@pytest.mark.parametrize("name", RL)
def test_a_preset_gives_its_keys_their_values(name: str) -> None:
    found = config({"algorithm": name})
    plain = {key: value for key, value in PRESETS[name].settings.items() if "." not in key}
    assert {key: found.value(key) for key in plain} == {
        key: None if value == "none" else value for key, value in plain.items()
    }


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_has_a_row_on_the_page(name: str) -> None:
    assert f"| `{name}` |" in PAGE.read_text()


def test_a_preset_fills_in_only_what_the_yaml_leaves_open() -> None:
    found = config({"algorithm": "dapo", "pg_clip_high": 0.5, "loss_agg_mode": "seq-mean-token-sum"})
    assert (found.pg_clip_low, found.pg_clip_high, found.loss_agg_mode) == (0.2, 0.5, "seq-mean-token-sum")
    assert found.use_pg_clip_range
    assert config({"algorithm": "ppo", "value_clip": None}).value_clip is None
    found = config({})
    assert found.algorithm is None and found.loss_agg_mode == "seq-mean-token-mean" and found.adv_estimator == "grpo"
    given = tree({"algorithm": "dapo"})
    before = str(given)
    validate(RLVRConfig, given)
    assert str(given) == before
    (problem,) = [p for p in validate(DPOConfig, {"algorithm": "grpo"}).problems if p.keys == ("algorithm",)]
    assert "grpo is reinforcement learning: pipeline: rlvr, or agentic" in problem.text
    (problem,) = [p for p in validate(SFTConfig, {"algorithm": "sfft"}).problems if p.keys == ("algorithm",)]
    assert "'sfft' is not one of sft. Did you mean sft?" in problem.text


@pytest.mark.parametrize("name", RL)
def test_a_key_at_null_says_nothing_where_null_is_no_value(name: str) -> None:
    plain = {key: None for key in PRESETS[name].settings if "." not in key and key != "value_clip"}
    filled = config({"algorithm": name})
    found = config({"algorithm": name, **plain})
    assert {key: found.value(key) for key in plain} == {key: filled.value(key) for key in plain}


@pytest.mark.parametrize("name", RL)
def test_nothing_that_a_preset_sets_is_without_effect(name: str) -> None:
    assert [text for text in warnings_of(config({"algorithm": name})) if "nothing" in text] == []


def test_dapo_filters_the_groups_of_every_domain_that_says_nothing_itself() -> None:
    own = {"type": "mean_filter", "filter_args": {"threshold_down": 0.1, "threshold_up": 0.9}}
    domains = {"math": {"reward": "math_rule"}, "code": {"reward": "math_rule", "query_filter_config": own}}
    found = config({"algorithm": "dapo", "rewards": domains})
    assert {name: reward.query_filter_config.type for name, reward in found.rewards.items()} == {
        "math": "std_filter",
        "code": "mean_filter",
    }
    assert found.is_use_additional_prompts


@pytest.mark.parametrize(
    "name, told",
    [
        ("dapoo", r"'dapoo' is not one of ppo, grpo, dr_grpo, dapo, .*Did you mean dapo\?"),
        ("sft", "sft is a run of its own: pipeline: sft"),
        ("dpo", "dpo is a run of its own: pipeline: dpo"),
    ],
)
def test_an_unknown_name_is_refused_with_those_there_are(name: str, told: str) -> None:
    (problem,) = validate(RLVRConfig, tree({"algorithm": name})).problems
    assert problem.keys == ("algorithm",) and re.search(told, problem.text)


def test_the_plan_says_what_a_preset_has_set() -> None:
    found = config({"algorithm": "gspo", "pg_clip_high": 0.5})
    rows = list(algorithm_rows(found, build_plan(found), frozenset()))[:2]
    assert rows[0] == (
        "algorithm",
        "gspo sets adv_estimator grpo, pg_variant ppo, importance_sampling seq, use_pg_clip_range true, pg_clip_low "
        "0.0003, loss_agg_mode seq-mean-token-mean",
    )
    assert rows[1] == ("", "the YAML has pg_clip_high 0.5 instead of 0.0004")


@pytest.mark.parametrize("name", ["dpo", "cdpo", "ipo", "sft"])
def test_a_preset_of_rows_fills_in_what_its_run_does_not_say(name: str) -> None:
    cls = SFTConfig if name == "sft" else DPOConfig
    found = cls.model_validate({"algorithm": name, "pretrain": "model"})
    assert {key: found.value(key) for key in PRESETS[name].settings} == dict(PRESETS[name].settings)
    assert DPOConfig.model_validate({"algorithm": "ipo", "beta": 0.3, "pretrain": "model"}).beta == 0.3
