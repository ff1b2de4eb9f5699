"""docs/adding_a_reward.md: its reward scores as the page says, its YAML passes the checks."""

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from roll.pipeline.rlvr.rlvr_config import RLVRConfig
from roll.rewards.base import REQUIRED, RewardInput
from roll.rewards.config import RewardConfig
from roll.rewards.worker import RewardWorker
from roll.utils.imports import resolve
from tests.helpers.pages import importable, snippets
from tests.helpers.rewards import preflight

REWARD, REQUIRING, BATCH, TRYING = snippets("adding_a_reward.md", "python")
(SETTINGS,) = snippets("adding_a_reward.md", "yaml")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "my_rewards.py").write_text(f"{REWARD}\n\n{REQUIRING}")
    return tmp_path


def test_the_reward_of_the_page_scores_and_reports_what_the_page_shows(folder: Path) -> None:
    right, wrong = RewardInput("", "the answer is 42", "42"), RewardInput("", 300 * "x", "42")
    with importable(folder):
        plain, longer = (
            RewardWorker("math", RewardConfig(reward="my_rewards:brevity", reward_args=arguments))
            for arguments in ({}, {"max_chars": 400})
        )
        outcomes = [outcome for worker in (plain, longer) for outcome in worker.score([right, wrong]) if outcome]
    assert [outcome.score for outcome in outcomes] == [1.1, 0.0, 1.1, 0.1]
    assert [outcome.metrics for outcome in outcomes[:2]] == [{"correct": 1, "short": 1}, {"correct": 0, "short": 0}]


def test_the_settings_and_columns_of_the_page_are_taken(folder: Path) -> None:
    rewards = {domain: RewardConfig(**keys) for domain, keys in yaml.safe_load(SETTINGS)["rewards"].items()}
    with importable(folder):
        assert preflight(RLVRConfig.model_construct(rewards=rewards)) == []
    with importable(folder):
        assert getattr(resolve("my_rewards:passes"), REQUIRED) == ("ground_truth", "unit_tests")


def test_the_parts_of_the_page_of_rewards_pass_the_checks_and_add_up(folder: Path) -> None:
    (page,) = snippets("rewards.md", "yaml")
    keys = yaml.safe_load(page.replace("${response_length}", "4096"))["rewards"]["math"]
    keys["reward_manager_config"][0]["reward_args"]["max_tokens"] = 4096
    reward = RewardConfig(**{**keys, "reward": "exact_match"})
    with importable(folder):
        assert preflight(RLVRConfig.model_construct(rewards={"math": reward})) == []
        (outcome,) = RewardWorker("math", reward).score([RewardInput("", "42", "42", num_response_tokens=3584)])
    assert outcome is not None and outcome.score == pytest.approx(1 - 0.5 + 0.1 * 1.1)
    assert outcome.metrics["style_short"] == 1


def test_the_batch_reward_of_the_page_compares_the_answers_of_a_group(folder: Path) -> None:
    (folder / "my_batch.py").write_text(BATCH)
    with importable(folder):
        worker = RewardWorker("math", RewardConfig(reward="my_batch:different"))
        outcomes = worker.score([RewardInput("", text) for text in ("a", "b", "a")])
    assert [outcome and outcome.score for outcome in outcomes] == [0, 1, 0]


def test_trying_a_reward_as_the_page_shows_prints_its_outcome(folder: Path) -> None:
    (folder / "try_it.py").write_text(TRYING)
    shown = subprocess.run([sys.executable, "try_it.py"], cwd=folder, capture_output=True, text=True)
    assert "RewardOutcome(score=1.1, failure=None" in shown.stdout, shown.stderr
