"""What docs/adding_an_estimator.md and docs/adding_a_loss.md say, followed from a folder outside the repository."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from roll.algorithms.advantage import AdvantageSettings, group_advantages
from roll.algorithms.episodes import EpisodeSettings, discounted_returns, turn_advantages
from roll.algorithms.policy_loss import PolicyLoss
from roll.commands import run as cli
from roll.configs.plan.batch_plan import build_plan
from roll.rl.settings import policy_loss
from tests.helpers.configs import config, tree
from tests.helpers.pages import importable, snippets, write_files
from tests.parity.algorithms.test_episodes_against_loops import random_episodes, rows_of
from tests.unit.algorithms.rows import apply_loss, near, random_samples, random_train_batch

NAN = float("nan")


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """The files of both pages, and nothing of the repository."""
    codes = snippets("adding_an_estimator.md", "python") + snippets("adding_a_loss.md", "python")
    assert write_files(codes, tmp_path) == ["maxrl", "among_turns", "soft_gate"]
    with importable(tmp_path):
        yield tmp_path


def test_the_estimator_of_the_page_gives_its_numbers(folder: Path) -> None:
    rewards = np.array([1, 0, 1, NAN, 0, 0, 0, 0, 1, 0, 0.0], np.float32)
    groups = np.array([0, 0, 1, 1, 0, 0, 2, 2, 1, 1, 1])
    settings = AdvantageSettings("maxrl:max_rl")
    values, metrics = group_advantages(rewards, groups, settings)
    assert values.tolist() == [3, -1, 1, 0, -1, -1, 0, 0, 1, -1, -1]
    assert metrics["reward_mean"] == pytest.approx(0.3)
    clipped, _ = group_advantages(rewards, groups, AdvantageSettings("maxrl:max_rl", reward_clip=2.0))
    assert clipped.tolist() == [2, -1, 1, 0, -1, -1, 0, 0, 1, -1, -1]
    above, _ = group_advantages(rewards, groups, AdvantageSettings("maxrl:max_rl", args={"floor": 0.3}))
    assert above.tolist() == [0, 0, 1, 0, 0, 0, 0, 0, 1, -1, -1]


def test_the_estimator_of_turns_equals_a_loop(folder: Path) -> None:
    episodes = random_episodes(3)
    meta = rows_of(episodes, by_step=False)
    values, _ = turn_advantages(meta, EpisodeSettings(AdvantageSettings("among_turns:among_turns"), turn_gamma=0.9))
    kept = [e for e in episodes if not e.failed]
    returns = [discounted_returns(np.array(e.rewards), np.zeros(len(e.rewards), int), 0.9).tolist() for e in kept]
    expected = []
    for episode, own in zip(kept, returns, strict=True):
        others = [g for e, several in zip(kept, returns, strict=True) if e.group == episode.group for g in several]
        expected += [g - sum(others) / len(others) for g in own]
    np.testing.assert_allclose(values, expected, atol=1e-12)


def soft_gate_loss(folder: Path) -> PolicyLoss:
    given = config({"pg_variant": "soft_gate:SoftGate", "pg_args": {"tau_negative": 2}, "loss_agg_mode": "token-mean"})
    return policy_loss(given, build_plan(given))


def test_the_loss_of_the_page_and_its_gradient_equal_a_loop(folder: Path) -> None:
    """In float64, from the formula of the page, over two micro batches."""
    rng = np.random.default_rng(5)
    batch = random_train_batch(rng, random_samples(rng, [4, 1, 0, 7]))
    theta = torch.from_numpy(near(rng, batch.samples, 0.3).astype(np.float64)).requires_grad_()
    entropy = torch.zeros_like(theta)
    assert batch.old_log_probs is not None
    total, slopes = torch.zeros((), dtype=torch.float64), []
    tokens = np.flatnonzero(batch.samples.response_mask)
    weights = np.repeat(batch.samples.loss_weights, batch.samples.lengths)
    for t in tokens:
        advantage, tau = float(batch.advantages[t]), 1.0 if batch.advantages[t] > 0 else 2.0
        r = torch.exp(theta[t] - float(batch.old_log_probs[t]))
        gate = 1 / (1 + torch.exp(-tau * (r - 1)))
        slopes.append(4 * gate.item() * (1 - gate.item()))
        total = total - float(weights[t]) * 4 / tau * gate * advantage / len(tokens)
    (gradient,) = torch.autograd.grad(total, [theta])

    parts = [np.array([0, 3]), np.array([2, 1])]
    value, metrics = apply_loss(soft_gate_loss(folder), batch, {"log_probs": theta, "entropy": entropy}, parts)
    assert value == pytest.approx(total.item(), rel=2e-6)
    assert theta.grad is not None
    torch.testing.assert_close(theta.grad, gradient, rtol=2e-6, atol=1e-9)
    assert metrics.result()["gate_slope_mean"] == pytest.approx(math.fsum(slopes) / len(slopes), rel=1e-5)


def test_a_dry_run_of_a_yaml_that_names_both_works_and_refuses_a_wrong_argument(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given = {"adv_estimator": "maxrl:max_rl", "adv_args": {"floor": 0.1}, "pg_variant": "soft_gate:SoftGate"}
    (folder / "run.yaml").write_text(yaml.safe_dump(tree(given)))
    monkeypatch.chdir(folder)
    arguments = ["--config_path", str(folder), "--config_name", "run", "--dry_run", "--elsewhere"]
    assert cli.main("rlvr", arguments) == 0
    assert capsys.readouterr().out.rstrip().endswith("The plan works.")
    assert cli.main("rlvr", [*arguments, "pg_args.tau_positiv=2", "adv_args.floor=none"]) == 2
    said = capsys.readouterr().err
    assert "pg_args.tau_positiv: soft_gate:SoftGate has no such argument." in said
    assert "Did you mean tau_positive?" in said
    assert "adv_estimator: maxrl:max_rl raised " in said
