"""What the modes of a run start, and what they refuse."""

from __future__ import annotations

from typing import Any

import pytest

from roll.configs.plan.batch_plan import build_plan
from roll.configs.plan.describe import batch_rows, describe
from roll.configs.sections.experience import mode_directory
from tests.helpers.cases import cases
from tests.helpers.configs import config, problems, warnings_of

EVAL = {"validation.data_args.file_name": "test.jsonl"}
ROLES = {"reference.strategy_args.strategy_name": "hf_infer", "reference.device_mapping": [3], "enable_reference": True}


@cases("mode, roles")
def test_a_mode_starts_the_roles_of_its_part(mode: str, roles: list[str]) -> None:
    made = config({**EVAL, **ROLES, "mode": mode})
    assert sorted(made.model_roles) == sorted(roles)
    assert sorted(place.role for place in build_plan(made).layout.roles) == sorted([*roles, *made.cpu_roles])
    assert list(made.cpu_roles) == ([] if mode == "train" else ["rewards.math"])


@cases("mode, said")
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


@cases("changes, said")
def test_what_cannot_work_is_said_before_anything_starts(changes: dict[str, Any], said: str) -> None:
    assert any(said in text for text in problems(changes)), problems(changes)


@pytest.mark.parametrize("mode", ["both", "explore", "train"])
def test_the_same_settings_work_in_both_parts(mode: str) -> None:
    assert problems({"mode": mode, "experience.on_timeout": "partial"}) == []
    assert problems({"mode": mode, "async_generation_ratio": 1.0, "experience.reuse.enable": True}) == []


def test_settings_that_do_nothing_are_told_and_old_responses_are_weighed() -> None:
    told = warnings_of(config({"experience.keep": True}))
    assert any("experience does nothing with mode: both" in text for text in told)
    told = warnings_of(config({"mode": "train", "save_steps": -1}))
    assert any("none will be saved: all of it is kept" in text for text in told)
    assert not any("experience" in text for text in warnings_of(config({"mode": "explore"})))

    def weighs(**keys: Any) -> bool:
        return config({"mode": "train", "max_staleness": 2, "experience": keys}).trains_stale

    assert not weighs()
    assert weighs(on_timeout="partial") and weighs(reuse={"enable": True})
    assert not config({"mode": "explore", "experience.on_timeout": "partial"}).trains_stale
