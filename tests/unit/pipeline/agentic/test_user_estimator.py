"""Estimators of the user's own in an agentic run: what its configuration makes of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from roll.algorithms.episodes import episode_advantages, turn_advantages
from roll.pipeline.agentic.settings import episode_settings
from roll.rl.user_code import user_code_problems
from tests.helpers.pages import importable
from tests.parity.algorithms.test_episodes_against_loops import random_episodes, rows_of
from tests.unit.pipeline.agentic.test_config import config, problems

CODE = """
from roll.algorithms.advantage import estimator

@estimator(needs_groups=True)
def halved(attempts, share=0.5):
    return share * (attempts.rewards - attempts.group.mean)
@estimator(per_turn=True)
def discounted(turns):
    return turns.returns + turns.episode_values
@estimator(per_turn=True, steps_only=True)
def by_step(turns):
    return turns.returns
@estimator(per_turn=True)
def per_episode(turns):
    return turns.rewards[:1]
"""


@pytest.fixture(autouse=True)
def own_module(tmp_path: Path) -> Iterator[None]:
    (tmp_path / "own_agentic.py").write_text(CODE)
    with importable(tmp_path):
        yield


def test_episodes_are_the_attempts_of_an_estimator_without_turns() -> None:
    made = config(adv_estimator="own_agentic:halved", adv_args={"share": 0.25})
    assert user_code_problems(made) == []
    episodes = random_episodes(2)
    values, _ = episode_advantages(rows_of(episodes, by_step=True), episode_settings(made))
    expected = []
    for episode in episodes:
        mates = [sum(e.rewards) for e in episodes if e.group == episode.group and not e.failed]
        value = 0.0 if episode.failed else 0.25 * (sum(episode.rewards) - sum(mates) / len(mates))
        expected += [value] * (1 if episode.failed else len(episode.rewards))
    np.testing.assert_allclose(values, expected, atol=1e-6)


def test_turns_come_with_their_discounted_returns_and_their_episodes_value() -> None:
    made = config(
        adv_estimator="own_agentic:discounted", step_reward_gamma=0.5, reward_normalization={"method": "mean"}
    )
    assert user_code_problems(made) == []
    settings = episode_settings(made)
    assert settings.is_per_turn
    episodes = random_episodes(4)
    values, _ = turn_advantages(rows_of(episodes, by_step=False), settings)
    kept = [e for e in episodes if not e.failed]
    mean = sum(sum(e.rewards) for e in kept) / len(kept)
    expected = []
    for e in kept:
        for k in range(len(e.rewards)):
            earned = sum(0.5**i * reward for i, reward in enumerate(e.rewards[k:]))
            expected.append(earned + sum(e.rewards) - mean)
    np.testing.assert_allclose(values, expected, atol=1e-5)


def test_what_it_says_of_itself_is_held_against_the_run() -> None:
    (text,) = problems({"adv_estimator": "own_agentic:by_step"})
    assert text.startswith("adv_estimator: own_agentic:by_step credits single steps, but custom_envs.Lake.")
    alone = {"train_env_manager.group_size": 1, "train_env_manager.num_env_groups": 32, "rollout_batch_size": 32}
    (text,) = problems({"adv_estimator": "own_agentic:halved", **alone})
    assert text.startswith("adv_estimator: own_agentic:halved compares a reward with the others of its group")
    (found,) = user_code_problems(config(adv_estimator="own_agentic:halved", reward_normalization={"method": "mean"}))
    assert "says by itself what a reward is worth" in found.text
    (found,) = user_code_problems(config(adv_estimator="own_agentic:per_episode"))
    assert "returned an array of shape (1,) and float64 for 48 turns" in found.text
