"""What a process of each mode starts, and where it writes."""

from typing import Any

import pytest

from roll.configs.plan.batch_plan import build_plan
from roll.configs.plan.describe import batch_rows, describe
from roll.configs.sections.experience import mode_directory
from tests.helpers.configs import config

EVAL = {"validation.data_args.file_name": "test.jsonl"}
ROLES = {"reference.strategy_args.strategy_name": "hf_infer", "reference.device_mapping": [3], "enable_reference": True}


@pytest.mark.parametrize(
    ("mode", "roles"),
    [
        ("both", ["actor_train", "actor_infer", "reference"]),
        ("explore", ["actor_infer"]),
        ("train", ["actor_train", "reference"]),
        ("bench", ["actor_infer"]),
    ],
)
def test_a_mode_starts_the_roles_of_its_part(mode: str, roles: list[str]) -> None:
    made = config({**EVAL, **ROLES, "mode": mode})
    assert sorted(made.model_roles) == sorted(roles)
    assert sorted(place.role for place in build_plan(made).layout.roles) == sorted([*roles, *made.cpu_roles])
    assert list(made.cpu_roles) == ([] if mode == "train" else ["rewards.math"])


@pytest.mark.parametrize(
    ("mode", "said"),
    [
        (
            "both",
            ["5 steps, seed 42", "validate  at the start, every 10 steps, at the end", "save      every 50 steps"],
        ),
        ("explore", ["save      never: it continues from", "mode: train trains on them there"]),
        ("train", ["5 steps", "validate  never: the explorer does it", "mode: explore samples them there"]),
        ("bench", ["no steps, seed 42", "validate  once", "save      never"]),
    ],
)
def test_the_plan_says_what_a_mode_does(mode: str, said: list[str]) -> None:
    made = config({**EVAL, "mode": mode, "max_steps": 5})
    plan = build_plan(made)
    shown = describe(made, plan, batch_rows(made, plan))
    assert [text for text in said if text not in shown] == [], shown


def test_a_process_beside_a_run_writes_to_a_folder_of_its_own_and_reads_the_checkpoints_of_the_run() -> None:
    made = config({**EVAL, "mode": "bench", "output_dir": "/runs/sums", "logging_dir": "/logs"})
    assert made.output_dir == "/runs/sums/bench"
    assert made.logging_dir == "/logs/bench"
    assert made.rollout_dump_dir == "/runs/sums/bench/rollouts"
    assert str(made.checkpoint_dir) == "/runs/sums/checkpoints"


@pytest.mark.parametrize(
    ("given", "there"),
    [
        ({"output_dir": "/a", "logging_dir": "/a/logs"}, "/a/bench/logs"),
        ({"output_dir": "/a", "logging_dir": "/ab/logs"}, "/ab/logs/bench"),
        ({"exp_name": "x", "logging_dir": "./output/x/logs"}, "./output/x/bench/logs"),
    ],
)
def test_a_folder_in_that_of_the_run_moves_with_it(given: dict[str, Any], there: str) -> None:
    assert mode_directory({**given, "mode": "bench"})["logging_dir"] == there
    assert mode_directory(given) == given
