"""Worked examples of algorithms: a group of four answers as one update, by the code that a run calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch

from roll.algorithms.advantage import group_advantages
from roll.algorithms.credit import assign_credit
from roll.algorithms.loss import Loss, SupervisedLoss
from roll.algorithms.preference import DPOLoss
from roll.algorithms.token_baselines import TokenGroups
from roll.configs.load.validate import validate
from roll.configs.plan.batch_plan import build_plan
from roll.configs.tables.presets import PRESETS, Preset
from roll.pipeline.dpo.dpo_config import DPOConfig
from roll.pipeline.rlvr.rlvr_config import RLVRConfig
from roll.rl.settings import (
    advantage_settings,
    covariance_choice,
    credit_settings,
    mixed_loss,
    moment_choice,
    policy_loss,
)
from roll.types.batch import LossScale, PairRows, Rows, SampleBatch, TokenOutputs, TokenScores
from roll.types.collate import pad

# The worked examples of algorithms that learn from given answers.

P = ((0.5, 0.8), (0.5, 0.4, 0.9))
"""p of every token of two answers; of a pair the first is the better one."""
P_REF = ((0.4, 0.8), (0.5, 0.5, 0.9))


@dataclass(frozen=True)
class WorkedRows:
    """The gradient of the loss by the log-prob of every token, and the loss of the update."""

    gradients: tuple[tuple[float, ...], ...]
    loss: float


def worked_rows(preset: Preset) -> WorkedRows:
    """Two answers as one update, by the code that a run calls."""
    loss, micro = _loss(preset), pad(_pair_rows(), np.arange(len(P)))
    log_probs = torch.zeros(micro.input_ids.shape)
    for row, probs in enumerate(P):
        log_probs[row, : len(probs)] = torch.tensor(probs).log()
    log_probs.requires_grad_()
    scale = LossScale(int(micro.response_mask.sum()), len(P))
    total, _ = loss(TokenOutputs(log_probs=log_probs), micro, scale)
    (gradient,) = torch.autograd.grad(total, log_probs)
    by_row = tuple(tuple(gradient[row, : len(probs)].tolist()) for row, probs in enumerate(P))
    return WorkedRows(by_row, float(total.detach()))


def _loss(preset: Preset) -> Loss:
    if preset.pipeline == "sft":
        return SupervisedLoss()
    cfg = DPOConfig.model_validate({"algorithm": preset.name, "pretrain": "model"})
    return DPOLoss(**{field.name: cfg.value(field.name) for field in fields(DPOLoss)})


def _pair_rows() -> PairRows:
    def flat(by_row: Sequence[Sequence[float]]) -> np.ndarray:
        return np.log(np.concatenate([np.array(probs) for probs in by_row])).astype(np.float32)

    tokens = sum(map(len, P))
    return PairRows(
        lengths=np.array([len(probs) for probs in P], np.int32),
        input_ids=np.zeros(tokens, np.int32),
        response_mask=np.ones(tokens, bool),
        loss_weights=np.ones(len(P), np.float32),
        margins=np.zeros(len(P), np.float32),
        ref_log_probs=flat(P_REF),
    )


REWARDS = (1.0, 0.0, 0.0, 1.0)
RATIOS = ((1.0, 1.5), (1.0, 0.5, 1.0), (1.4,), (0.7, 1.0))
"""p_new / p_old of every token of the four answers."""
OLD, VALUE, LONGEST, GREEDY = 0.5, 0.4, 4, 1.0
"""p_old of every token; what a critic says of every state; the longest answer there can be; the greedy one's reward."""
SQUARES = 0.5
"""Sum of the squared probabilities of the vocabulary, at every token."""
PARTS = ((1.0, 0.0), (0.0, 0.0), (0.0, 0.0), (0.5, 0.5))
"""Two parts of the reward of every answer, for estimators that compare each by itself."""
RARE, RARE_OLD = (1, 1), 0.25
"""The p_old of one token in examples of losses that choose tokens by covariance, so that tokens differ."""
EXPERT = (0.9, 0.5)
"""p_new of the two tokens of an expert's row."""
_ROLE = {"strategy_args": {"strategy_name": "hf_infer"}, "device_mapping": [0]}


@dataclass(frozen=True)
class Worked:
    """The advantage of every token, the gradient of the loss by its log-prob, and the loss of the update. `expert`: the
    gradients of an expert's tokens, if the algorithm has any."""

    advantages: tuple[tuple[float, ...], ...]
    gradients: tuple[tuple[float, ...], ...]
    loss: float
    expert: tuple[float, ...] = ()


def worked(name: str) -> Worked:
    """A group of four answers as one update, by the code that a run calls."""
    config = _config(name)
    samples = _samples()
    of_rows = (samples.rewards, samples.group_ids, advantage_settings(config))
    greedy = np.full(len(samples), GREEDY) if config.estimator.needs_greedy else None
    parts = np.array(PARTS) if config.estimator.needs_parts else None
    values, _ = group_advantages(*of_rows, lengths=samples.response_lengths, greedy_rewards=greedy, parts=parts)
    critic = np.full(samples.num_tokens, VALUE, np.float32) if config.needs_critic else None
    choice = covariance_choice(config)
    old = np.full(samples.num_tokens, np.log(OLD), np.float32)
    if choice is not None:
        old[samples.lengths[: RARE[0]].sum() + RARE[1]] = np.log(RARE_OLD)
    groups = (
        TokenGroups.of_rows(samples.group_ids, samples.response_lengths) if config.estimator.weighs_tokens else None
    )
    halved = np.full(samples.num_tokens, 2 * np.log(OLD) - np.log(SQUARES), np.float32)
    scores = TokenScores(old_log_probs=old, halved_log_probs=halved, values=critic)
    batch, _ = assign_credit(samples, scores, values, credit_settings(config, 0.0), list, groups=groups)
    if choice is not None:
        batch = replace(batch, chosen=choice.find(batch, [np.arange(len(samples))], list))
    if (moment := moment_choice(config)) is not None:
        present = np.log(np.concatenate(RATIOS)).astype(np.float32) + old
        batch = replace(batch, chosen=moment.find(batch, np.arange(samples.num_tokens), present, list))
    loss, micro = policy_loss(config, build_plan(config)), pad(batch, np.arange(len(samples)))
    assert micro.old_log_probs is not None
    ratios = torch.zeros(micro.input_ids.shape)
    for row, raw_values in enumerate(RATIOS):
        ratios[row, : len(raw_values)] = torch.tensor(raw_values).log()
    log_probs = (ratios + micro.old_log_probs).requires_grad_()
    outputs = TokenOutputs(log_probs=log_probs, entropy=torch.zeros(micro.input_ids.shape))
    scale = LossScale(samples.num_tokens, len(samples), LossScale(len(EXPERT), 1))
    assert micro.advantages is not None
    if not config.mix.drawn:
        total, _ = loss(outputs, micro, scale)
        (gradient,) = torch.autograd.grad(total, log_probs)
        return Worked(_rows(micro.advantages), _rows(gradient), float(total.detach()))
    mixed = mixed_loss(config, loss, config.mix.weight_at(1))
    raw_values = torch.tensor([EXPERT]).log().requires_grad_()
    row = pad(Rows.of([[0] * len(EXPERT)], [[True] * len(EXPERT)]), np.zeros(1, np.int64))
    total = mixed(outputs, micro, scale)[0] + mixed(TokenOutputs(log_probs=raw_values), row, scale)[0]
    gradient, of_expert = torch.autograd.grad(total, (log_probs, raw_values))
    return Worked(_rows(micro.advantages), _rows(gradient), float(total.detach()), tuple(of_expert[0].tolist()))


def _rows(values: torch.Tensor) -> tuple[tuple[float, ...], ...]:
    return tuple(tuple(values[row, : len(ratios)].tolist()) for row, ratios in enumerate(RATIOS))


def _config(name: str) -> RLVRConfig:
    """The smallest run with this algorithm."""
    tree: dict[str, Any] = {
        "algorithm": name,
        "pretrain": "model",
        "prompt_length": 4,
        "response_length": LONGEST,
        "rollout_batch_size": 2,
        "num_return_sequences_in_group": len(REWARDS),
        "actor_train": {**_ROLE, "training_args": {"per_device_train_batch_size": len(REWARDS)}},
        "actor_infer": _ROLE,
        "critic": {**_ROLE, "training_args": {"per_device_train_batch_size": len(REWARDS)}},
        "rewards": {"task": {"reward": "math_rule"}},
    }
    if name == "gdpo":
        tree["gdpo_reward_keys"] = ["first", "second"]
    if any(key.startswith("mix.") for key in PRESETS[name].settings):
        tree["mix"] = {"rows": {"expert": {"share": 0.2}}}
    config = validate(RLVRConfig, tree).config
    assert config is not None
    return config


def _samples() -> SampleBatch:
    lengths = [len(ratios) for ratios in RATIOS]
    rows, tokens = len(lengths), sum(lengths)
    return SampleBatch(
        lengths=np.array(lengths, np.int32),
        input_ids=np.zeros(tokens, np.int32),
        response_mask=np.ones(tokens, bool),
        rollout_log_probs=np.full(tokens, np.log(OLD), np.float32),
        policy_versions=np.zeros(tokens, np.int32),
        rewards=np.array(REWARDS, np.float32),
        group_ids=np.zeros(rows, np.int64),
        trajectory_ids=np.arange(rows, dtype=np.int64),
        turns=np.zeros(rows, np.int32),
        domains=np.full(rows, "task"),
        finish_reasons=np.zeros(rows, np.int8),
        loss_weights=np.ones(rows, np.float32),
    )
