"""Expected updates of every estimator and loss, over all responses of a small vocabulary.

A loop over the same formula proves that a formula is computed. It cannot prove that the formula does what its name
says. Here every response that a policy can give is a row, weighed by its probability, so that the product's own
advantages, losses and gradients add up to the exact expected update. It is compared with the gradient of the quantity
that docs/algorithms.md and docs/distillation.md name, which is written down again here. Not covered: variance.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, get_args

import numpy as np
import pytest

from roll.algorithms.advantage import AdvantageSettings, group_advantages
from roll.algorithms.credit import CreditSettings, assign_credit
from roll.algorithms.episodes import EpisodeSettings, turn_advantages
from roll.algorithms.token_baselines import TokenGroups
from roll.configs.sections.teachers import OPDAdvantage
from roll.configs.tables.estimators import ESTIMATORS, MeanScope, RAFTKeep, StdScope
from roll.rl.settings import advantage_settings, credit_settings
from roll.types.batch import RowMeta, TokenScores
from tests.helpers.configs import config
from tests.parity.algorithms.expected_losses import LOSS_SHELVES
from tests.parity.algorithms.small_policy import (
    ALL,
    LIKELY,
    LOGITS,
    RESPONSES,
    REWARDS,
    SECOND,
    TARGET,
    UPHILL,
    Gradient,
    at_places,
    expected_reward,
    flat,
    kl,
    log_softmax,
    numeric,
    probabilities,
    pushed,
    rows_of,
)
from tests.unit.algorithms.rows import alone

# On-policy distillation: a divergence at each place, weighed by how often the policy gets there.

TEACHER_SHARE = 0.3


def jensen_shannon(p: np.ndarray, q: np.ndarray) -> float:
    m = TEACHER_SHARE * q + (1 - TEACHER_SHARE) * p
    return TEACHER_SHARE * kl(q, m) + (1 - TEACHER_SHARE) * kl(p, m)


def taught(share: float | None) -> Gradient:
    log_p, log_q = (flat(log_softmax(logits), ALL) for logits in (LOGITS, TARGET))
    settings = CreditSettings("reinforce", teacher_alone=True, teacher_share=share)
    scores = TokenScores(old_log_probs=log_p, teacher_log_probs=log_q)
    rows = rows_of(ALL, ALL)
    batch, _ = assign_credit(rows, scores, np.zeros(5), settings, alone, teacher_weights=np.ones(5))
    return pushed(batch.advantages, ALL, probabilities(LOGITS))


# Estimators: groups of two responses to one prompt, all 25 of them or, where the batch has a say, all pairs of groups.

AFTER_B = float(LIKELY[2:] @ REWARDS[2:]) / SECOND  # what is earned where the second token is chosen
PARTS = np.array([[0.0, 4.0], [1.0, 8.0], [1.0, 10.0], [0.0, 0.0], [0.0, 6.0]])  # two parts, of other scales
KEYS: dict[str, dict[str, Any]] = {
    "gdpo": {"gdpo_reward_keys": ["high", "low"]},
    "gae": {"critic": {"strategy_args": {"strategy_name": "deepspeed_train"}, "device_mapping": [0]}},
}


def advantages_of(
    name: str, chosen: np.ndarray, groups: np.ndarray, values: np.ndarray, rewards: np.ndarray, **keys: Any
) -> np.ndarray:
    """The product's advantages of tokens, flat over the rows. `values`: a critic's at the two places."""
    settings = config({"adv_estimator": name, **KEYS.get(name, {}), **keys})
    rows = replace(rows_of(chosen, groups), rewards=rewards[chosen].astype(np.float32))
    credit = credit_settings(settings, 0.0)
    if not settings.estimator.per_turn:
        lengths, greedy = rows.response_lengths, np.full(len(chosen), rewards[LIKELY.argmax()])
        of_rows = rows.rewards.astype(np.float64), groups, advantage_settings(settings)
        row_values, _ = group_advantages(
            *of_rows,
            lengths=lengths,
            greedy_rewards=greedy,
            parts=PARTS[chosen] if rewards is REWARDS else rewards[chosen].repeat(2).reshape(-1, 2),
        )
        halved = np.log(
            np.exp(2 * log_softmax(LOGITS)) / np.exp(2 * log_softmax(LOGITS)).reshape(2, 3).sum(1).repeat(3)
        )
        scores = TokenScores(
            old_log_probs=rows.rollout_log_probs,
            halved_log_probs=flat(halved, chosen),
            values=flat(values.repeat(3), chosen),
        )
        places = TokenGroups.of_rows(groups, lengths) if settings.estimator.weighs_tokens else None
        batch, _ = assign_credit(rows, scores, row_values, credit, list, groups=places)
        return batch.advantages
    row_of = np.array([row for row, i in enumerate(chosen) for _ in RESPONSES[i]])
    turns = np.concatenate([np.arange(len(RESPONSES[i])) for i in chosen])
    last = np.append(turns[1:] == 0, True)
    meta = RowMeta(
        lengths=np.full(len(turns), 2, np.int32),
        response_lengths=np.ones(len(turns), np.int64),
        rewards=rows.rewards[row_of],
        group_ids=groups[row_of].astype(np.int64),
        trajectory_ids=row_of.astype(np.int64),
        turns=turns.astype(np.int32),
        domains=np.full(len(turns), "any"),
        finish_reasons=np.zeros(len(turns), np.int8),
        num_turns=np.ones(len(turns), np.int64),
        turn_rewards=np.where(last, rows.rewards[row_of], 0.0).astype(np.float64),
        state_keys=turns.astype(np.int64),
    )
    of_turns, _ = turn_advantages(meta, EpisodeSettings(AdvantageSettings(name)))
    out = np.zeros(int(rows.lengths.sum()))
    out[rows.response_mask] = of_turns
    return out


def step_of(name: str, together: int = 1, values: tuple[float, float] = (0.0, 0.0), **keys: Any) -> Gradient:
    """The expected policy gradient's step of a row, `together` groups of two in a batch."""
    every = np.array(list(itertools.product(range(5), repeat=2 * together)))
    chances = LIKELY[every].prod(1)
    critic = np.array(values)
    if together == 1:
        advantages = advantages_of(name, every.ravel(), np.arange(25).repeat(2), critic, REWARDS, **keys)
        return pushed(advantages, every.ravel(), chances.repeat(2) / 2)
    step, groups = np.zeros(6), np.arange(together).repeat(2)
    for chosen, chance in zip(every, chances, strict=True):
        if chance > 1e-4:
            advantages = advantages_of(name, chosen, groups, critic, REWARDS, **keys)
            step += pushed(advantages, chosen, np.full(len(chosen), chance / len(chosen)))
    return step


def is_gradient(share: float, name: str, **more: Any) -> None:
    """The step is this share of the gradient of the expected reward."""
    np.testing.assert_allclose(step_of(name, **more), share * UPHILL, atol=1e-5)


def climbs(name: str, together: int = 1, least: float = 0.8, of: Gradient = UPHILL, **keys: Any) -> None:
    """The step raises the expected reward: its cosine with the gradient is at least `least`."""
    step = step_of(name, together, **keys)
    assert step @ of > least * np.linalg.norm(step) * np.linalg.norm(of) > 0


def of_parts(logits: np.ndarray) -> float:
    """The expected sum of both parts, each in units of its range."""
    return expected_reward(logits, (PARTS / PARTS.max(0)).sum(1))


def best_of_two(logits: np.ndarray) -> float:
    p = probabilities(logits)
    return float(p @ np.maximum.outer(REWARDS, REWARDS) @ p)


def trusts_critics_alike() -> None:
    """A perfect critic with any lambd, and any critic with lambd 1."""
    exact = (expected_reward(LOGITS), AFTER_B)
    is_gradient(1, "gae", values=exact)
    is_gradient(1, "gae", values=exact, lambd=0.2)
    is_gradient(1, "gae", values=(0.7, -2.0), lambd=1.0)


def raises_positive_rewards() -> None:
    likely = numeric(lambda logits: expected_reward(logits, (REWARDS > 0).astype(float)))
    np.testing.assert_allclose(step_of("raft", raft_keep="positive"), likely, atol=1e-5)


def raises_the_best_of_two() -> None:
    step = step_of("grpo_passk", norm_std_type="none")
    np.testing.assert_allclose(step, numeric(best_of_two) / 2, atol=1e-5)
    climbs("grpo_passk")


def scales_by_deviation() -> None:
    is_gradient(0.5, "grpo", norm_std_type="none")
    climbs("grpo")


def compares_by_either_baseline() -> None:
    is_gradient(0.5, "opmd")
    climbs("opmd", opmd_baseline="logavgexp")


ESTIMATOR_ROWS: dict[str, Callable[[], None]] = {
    "gae": trusts_critics_alike,
    "reinforce": lambda: is_gradient(1, "reinforce"),
    "reinforce_plus_plus": lambda: climbs("reinforce_plus_plus", together=2),
    "reinforce_plus_plus_baseline": lambda: climbs("reinforce_plus_plus_baseline", together=2),
    "grpo": scales_by_deviation,
    "rloo": lambda: is_gradient(1, "rloo"),
    "remax": lambda: is_gradient(1, "remax"),
    "opo": lambda: climbs("opo"),
    "optimal_token_baseline": lambda: climbs("optimal_token_baseline"),
    "gdpo": lambda: climbs("gdpo", together=2, of=numeric(of_parts)),
    "gpg": lambda: climbs("gpg", together=2),
    "grpo_passk": raises_the_best_of_two,
    "asymre": lambda: is_gradient(0.5, "asymre"),  # the shift, which all have, cancels on policy
    "raft": lambda: climbs("raft"),
    "opmd": compares_by_either_baseline,
    "gigpo": lambda: climbs("gigpo"),
    "step_reinforce": lambda: is_gradient(1, "step_reinforce"),
    "agentic_reinforce": lambda: is_gradient(1, "agentic_reinforce"),
}


EQUAL: dict[str, tuple[float, ...]] = {
    "reinforce": (0.5, 0.5, 0.5),
    "step_reinforce": (0.5, 0.5, 0.5),
    "agentic_reinforce": (0.5, 0.5, 0.5),
    "remax": (0.0, 0.0, 0.0),
    "asymre": (0.1, 0.1, 0.1),  # its shift
    "raft": (1.0, 0.0, 0.0),
    "optimal_token_baseline": (0.0, 0.0, 0.5),  # no other is as long
}
"""Advantages of two equal responses of one and two tokens, where they are not 0."""


@pytest.mark.parametrize("name", [name for name in ESTIMATORS if name not in ("gae", "reinforce_plus_plus")])
def test_a_group_with_equal_rewards_gets_zero_where_its_mean_is_subtracted(name: str) -> None:
    """Beside a group whose right response is the shorter one. docs/algorithms.md has the exceptions."""
    chosen, groups, rewards = np.array([0, 2, 1, 3]), np.array([0, 0, 1, 1]), np.array([1.0, 0.5, 0.0, 0.5, 0.0])
    found = advantages_of(name, chosen, groups, np.zeros(2), rewards)[[6, 8, 9]]
    expected = EQUAL.get(name, (0.0, 0.0, 0.0))
    assert found.tolist() == pytest.approx(expected) and (found == 0).tolist() == [x == 0 for x in expected]


@pytest.mark.parametrize("name", ["grpo", "gdpo", "rloo"])
def test_whitening_over_tokens_moves_a_group_with_equal_rewards_and_over_rows_does_not(name: str) -> None:
    chosen, groups, rewards = np.array([0, 2, 1, 3]), np.array([0, 0, 1, 1]), np.array([1.0, 0.5, 0.0, 0.5, 0.0])
    over_tokens, over_rows = (
        advantages_of(name, chosen, groups, np.zeros(2), rewards, whiten_advantages=how) for how in (True, "rows")
    )
    assert over_tokens[6] > 0.1 and over_rows[6] == 0
    assert over_rows[[1, 3]].tolist() == pytest.approx([1.2247, -1.2247], abs=1e-4)


def keeps(name: str) -> None:
    if name == "positive":
        raises_positive_rewards()
    else:
        climbs("raft", raft_keep=name)


def teaches(name: str) -> None:
    share, divergence = (None, kl) if name == "log_ratio" else (TEACHER_SHARE, jensen_shannon)
    np.testing.assert_allclose(taught(share), -numeric(at_places(divergence)), atol=1e-6)


SHELVES: dict[str, tuple[Iterable[str], Callable[[Any], None]]] = {
    "adv_estimator": (ESTIMATORS, lambda name: ESTIMATOR_ROWS[name]()),
    "norm_mean_type": (
        get_args(MeanScope),
        lambda name: is_gradient(0.5 if name == "group" else 1, "reinforce", norm_mean_type=name),
    ),
    "norm_std_type": (get_args(StdScope), lambda name: climbs("grpo", norm_std_type=name)),
    "raft_keep": (get_args(RAFTKeep), keeps),
    "opd_advantage": (get_args(OPDAdvantage), teaches),
    **LOSS_SHELVES,
}


@pytest.mark.parametrize(
    ("shelf", "name"), [(shelf, name) for shelf, (names, _) in SHELVES.items() for name in names], ids=str
)
def test_the_expected_update_does_what_the_name_says(shelf: str, name: str) -> None:
    SHELVES[shelf][1](name)
