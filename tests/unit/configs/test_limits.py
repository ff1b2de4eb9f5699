"""Numbers that nobody can mean are refused by a dry run, and at once."""

import math
from typing import Any

import numpy as np
import pytest

from roll.configs.base import LARGEST_SEED, Settings, nested_class
from roll.configs.plan.batch_plan import divisors_near
from roll.pipeline.agentic.agentic_config import AgenticConfig
from roll.pipeline.rlvr.rlvr_config import RLVRConfig
from tests.helpers.configs import problems

ARGS = "actor_train.training_args"


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize(
    "key",
    [
        f"{ARGS}.learning_rate",
        f"{ARGS}.weight_decay",
        f"{ARGS}.adam_epsilon",
        "actor_infer.generating_args.temperature",
        "actor_infer.generating_args.repetition_penalty",
        "pg_clip",
        "kl_loss_coef",
        "reward_clip",
        "max_grad_norm",
        "rewards.math.timeout_s",
        "train_infer_correction.is_weight.upper_bound",
        "actor_train.data_args.domain_interleave_probs.math",
        f"{ARGS}.lr_scheduler_kwargs.min_lr_ratio",
    ],
)
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
        ("actor_train.device_mapping", " + ".join(["list(range(1000000))"] * 9), "more than 1000000 devices"),
        (f"{ARGS}.learning_rate", 11, f"{ARGS}.learning_rate: 11 must be at most 10."),
        ("kl_loss_coef", 1e308, "kl_loss_coef: 1e+308 must be at most 1e+09."),
        ("actor_infer.generating_args.stop_token_ids", [-1], "stop_token_ids[0]: -1 must be at least 0."),
        (f"{ARGS}.lr_scheduler_kwargs.min_lr_ratio", 2, "min_lr_ratio: 2 must be at most 1."),
    ],
)
def test_a_number_beyond_its_limit_is_refused_with_the_limit(key: str, value: Any, message: str) -> None:
    assert [text for text in problems({key: value}) if key in text and message in text]


def test_a_step_of_more_samples_than_a_run_can_hold_is_refused() -> None:
    (text,) = problems({"rollout_batch_size": 1_000_000, "num_return_sequences_in_group": 64})
    assert "a step would have 1000000 x 64 = 64000000 samples" in text


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


def test_the_largest_seed_is_the_largest_that_numpy_takes() -> None:
    np.random.RandomState(LARGEST_SEED)
    with pytest.raises(ValueError):
        np.random.RandomState(LARGEST_SEED + 1)


def test_divisors_of_a_large_number_are_found_without_counting_to_it() -> None:
    assert divisors_near(7, 32) == [4, 8]
    assert divisors_near(999_983, 10**12) == [800_000, 1_000_000]
