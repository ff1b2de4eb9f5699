"""What a run in parts asks of its settings."""

from __future__ import annotations

from typing import Any

import pytest

from tests.helpers.configs import config, problems, warnings_of


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"mode": "explore", "unfinished_groups": "drop"}, "mode: explore with unfinished_groups: drop"),
        ({"mode": "train", "rollout_mock": {"enable": True, "mode": "mock"}}, "recorded rollouts need no explorer"),
        ({"mode": "train", "num_train_epochs": 2}, "num_train_epochs: mode: train reads no rows"),
        (
            {"mode": "explore", "actor_infer.strategy_args.strategy_config": {"enable_lora": True}},
            "enable_lora: true sends adapters from the trainer's memory",
        ),
        ({"mode": "train", "experience.reuse.enable": True}, "reuses nothing with max_staleness: 0"),
    ],
)
def test_what_cannot_work_is_said_before_anything_starts(changes: dict[str, Any], said: str) -> None:
    assert any(said in text for text in problems(changes)), problems(changes)


@pytest.mark.parametrize("mode", ["both", "explore", "train"])
def test_the_same_settings_work_in_both_parts(mode: str) -> None:
    assert problems({"mode": mode, "experience.on_timeout": "partial"}) == []
    assert problems({"mode": mode, "async_generation_ratio": 1.0, "experience.reuse.enable": True}) == []


def test_settings_that_do_nothing_are_told() -> None:
    told = warnings_of(config({"experience.keep": True}))
    assert any("experience does nothing with mode: both" in text for text in told)
    told = warnings_of(config({"mode": "train", "save_steps": -1}))
    assert any("none will be saved: all of it is kept" in text for text in told)
    assert not any("experience" in text for text in warnings_of(config({"mode": "explore"})))


def test_answers_that_may_be_old_are_weighed_like_those_of_rollouts_that_run_ahead() -> None:
    def weighs(**keys: Any) -> bool:
        return config({"mode": "train", "max_staleness": 2, "experience": keys}).trains_stale

    assert not weighs()
    assert weighs(on_timeout="partial") and weighs(reuse={"enable": True})
    assert not config({"mode": "explore", "experience.on_timeout": "partial"}).trains_stale
