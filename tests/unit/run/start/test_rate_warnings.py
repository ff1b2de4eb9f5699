"""Warnings at steps of many updates, and at rates that ruin a model."""

from typing import Any

import pytest

from roll.configs.sections.model import ModelArgs
from roll.run.saving.model_files import num_parameters
from roll.run.start.rl_defaults import rate_warnings
from roll.utils.text import short
from tests.helpers.cases import cases
from tests.helpers.configs import config

RATE = "actor_train.training_args.learning_rate"
ACCUMULATION = "actor_train.training_args.gradient_accumulation_steps"
MICRO = "actor_train.training_args.per_device_train_batch_size"


def warnings(changes: dict[str, Any]) -> list[str]:
    return list(rate_warnings(config({RATE: 1e-6, **changes})))


@pytest.mark.parametrize(
    ("keys", "updates"),
    [({MICRO: 8, ACCUMULATION: 1}, 16), ({MICRO: 4, ACCUMULATION: 1}, 32), ({MICRO: 8, "ppo_epochs": 3}, 24)],
)
def test_more_than_16_updates_a_step_are_warned_of(keys: dict[str, Any], updates: int) -> None:
    found = warnings(keys)
    assert (f"a step makes {updates} updates" in found[0]) if updates > 16 else not found


def test_warnings_name_better_values_for_adapters_and_critics_too() -> None:
    """256 samples in micro batches of 4 on 2 ranks are 32 passes of a rank."""
    (found,) = warnings({MICRO: 4, ACCUMULATION: 1})
    assert f"Set {ACCUMULATION} to 2 (16 updates) or 32 (1 update)." in found
    lora = {"lora_rank": 8, "lora_target": "all-linear"}
    assert not warnings({"pretrain": "org/m-7B", RATE: 1e-4, "actor_train.model_args": lora})
    critic = {
        "strategy_args": {"strategy_name": "deepspeed_train"},
        "device_mapping": [0, 1],
        "training_args": {"per_device_train_batch_size": 1, "learning_rate": 1e-4},
    }
    found = warnings({"pretrain": "org/m-7B", "critic": critic, "adv_estimator": "gae"})
    assert [text.partition(":")[0] for text in found] == ["critic", "critic.training_args.learning_rate"]


@cases("model, rate, is_high")
def test_a_rate_is_warned_of_above_1e_5_and_above_5e_5_for_models_of_less_than_a_third_of_a_billion(
    model: str, rate: float, is_high: bool
) -> None:
    found = warnings({"pretrain": model, RATE: rate})
    assert bool(found) == is_high
    assert all(f"{RATE}: {short(rate)} is high for training all of 0." in text for text in found)


@pytest.mark.parametrize(
    ("name", "size"), [("Qwen/Qwen3-30B-A3B", 3e10), ("Qwen/Qwen2.5-7B", 7e9), ("a/b-1.5b-it", 1.5e9), ("a/8bit", None)]
)
def test_a_name_tells_the_size_where_no_file_does(name: str, size: float | None) -> None:
    assert num_parameters(ModelArgs(model_name_or_path=name)) == size
