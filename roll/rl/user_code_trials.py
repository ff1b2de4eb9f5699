"""Trials of an estimator and of a policy loss of the user's own, on numbers made up for it."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from roll.algorithms.advantage import AdvantageSettings, group_advantages
from roll.algorithms.episodes import EpisodeSettings, turn_advantages
from roll.algorithms.objectives import PolicyTokens
from roll.algorithms.user_code import call_user
from roll.algorithms.user_objective import UserObjective
from roll.configs.sections.algorithm import AlgorithmConfig
from roll.errors import AlgorithmError
from roll.types.batch import RowMeta
from roll.types.metrics import MetricSums

MOST_TRIED = 8  # attempts of a group


def try_estimator(config: AlgorithmConfig) -> None:
    """Groups with one right answer, with none and with right ones alone, all of which a run will meet."""
    size = min(config.group_size, MOST_TRIED)
    settings = AdvantageSettings(config.adv_estimator, args=config.adv_args)
    rewards = np.concatenate([np.eye(size)[0], np.zeros(size), np.ones(size)])
    groups = np.repeat(np.arange(3), size)
    domains = np.full(len(rewards), next(iter(config.domains), ""))
    if not config.estimator.per_turn:
        group_advantages(rewards, groups, settings, domains)
        return
    rows = np.repeat(np.arange(len(rewards)), 2)  # each episode has two turns, a row each; the second earns the reward
    places = np.arange(len(rows)) % 2
    meta = RowMeta(
        lengths=np.ones(len(rows), np.int32),
        response_lengths=np.ones(len(rows), np.int64),
        rewards=rewards[rows].astype(np.float32),
        group_ids=groups[rows],
        trajectory_ids=rows,
        turns=places.astype(np.int32),
        domains=domains[rows],
        finish_reasons=np.zeros(len(rows), np.int8),
        num_turns=np.ones(len(rows), np.int64),
        turn_rewards=rewards[rows] * places,
        state_keys=places,
    )
    turn_advantages(meta, EpisodeSettings(settings))


def try_loss(path: str, args: Mapping[str, Any]) -> None:
    """Call a user's loss with tokens of both signs of advantage, at ratio 1, above it and below it."""
    mask = torch.tensor([[True] * 6, [True] * 5 + [False]])
    signs = torch.tensor([[1.0], [-1.0]]).expand(2, 6) * mask
    log_probs = torch.linspace(-3.0, -0.1, 12).reshape(2, 6).masked_fill(~mask, 0.0).requires_grad_()
    gap = torch.tensor([0.0, 0.0, 0.05, -0.05, 1.0, -1.0]).expand(2, 6) * mask
    tokens = PolicyTokens(log_probs, log_probs - (log_probs.detach() - gap), signs, mask)
    losses = UserObjective(path, args)(tokens, MetricSums())
    name = f"pg_variant: {path}, in its gradient,"
    (gradient,) = call_user(name, torch.autograd.grad, losses.sum(), log_probs, allow_unused=True)
    if gradient is None:
        raise AlgorithmError(
            f"pg_variant: {path} returned losses whose gradient does not reach the policy. They must depend on "
            "tokens.log_probs or tokens.log_ratio"
        )
    bad = (~gradient.isfinite()).nonzero()
    if len(bad):
        row, column = bad[0].tolist()
        raise AlgorithmError(
            f"pg_variant: {path} has the gradient {gradient[row, column].item()} for the log ratio "
            f"{gap[row, column].item():g} and the advantage {signs[row, column].item():g}"
        )
