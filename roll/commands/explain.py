"""`roll explain NAME`, also `python -m roll.commands.explain NAME`: an algorithm's formula, settings, and a worked
example that the code of a run computes."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from roll.algorithms.advantage import group_advantages
from roll.algorithms.credit import assign_credit
from roll.commands.explain_rows import numbers, worked_lines, worked_rows
from roll.commands.table import main
from roll.configs.load.validate import validate
from roll.configs.plan.batch_plan import build_plan
from roll.configs.presets.table import PRESETS, Preset, any_algorithm
from roll.configs.tables.estimators import estimator_of
from roll.configs.tables.policy_losses import policy_form_of
from roll.errors import ConfigError
from roll.pipeline.rlvr.rlvr_config import RLVRConfig
from roll.rl.settings import advantage_settings, covariance_choice, credit_settings, mixed_loss, policy_loss
from roll.types.batch import LossScale, Rows, SampleBatch, TokenOutputs, TokenScores
from roll.types.collate import pad
from roll.utils.text import table

REWARDS = (1.0, 0.0, 0.0, 1.0)
RATIOS = ((1.0, 1.5), (1.0, 0.5, 1.0), (1.4,), (0.7, 1.0))
"""p_new / p_old of every token of the four answers."""
OLD, VALUE, LONGEST, GREEDY = 0.5, 0.4, 4, 1.0
"""p_old of every token; what a critic says of every state; the longest answer there can be; the greedy one's reward."""
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


def run(argv: Sequence[str]) -> list[str]:
    """The lines for one name; without one, all there are. Raises ConfigError for a name that is none."""
    if len(argv) > 1:
        raise ConfigError(f"one name at a time, not {' '.join(argv)}.")
    if not argv or argv[0] in ("-h", "--help"):
        return ["roll explain NAME:", *table((preset.name, preset.paper) for preset in PRESETS.values())]
    try:
        return list(_explained(PRESETS[any_algorithm(argv[0])]))
    except ValueError as error:
        raise ConfigError(str(error)) from None


def worked(name: str) -> Worked:
    """A group of four answers as one update, by the code that a run calls."""
    config = _config(name)
    samples = _samples()
    of_rows = (samples.rewards, samples.group_ids, advantage_settings(config))
    greedy = np.full(len(samples), GREEDY) if config.estimator.needs_greedy else None
    values, _ = group_advantages(*of_rows, lengths=samples.response_lengths, greedy_rewards=greedy)
    critic = np.full(samples.num_tokens, VALUE, np.float32) if config.needs_critic else None
    choice = covariance_choice(config)
    old = np.full(samples.num_tokens, np.log(OLD), np.float32)
    if choice is not None:
        old[samples.lengths[: RARE[0]].sum() + RARE[1]] = np.log(RARE_OLD)
    scores = TokenScores(old_log_probs=old, values=critic)
    batch, _ = assign_credit(samples, scores, values, credit_settings(config, 0.0), list)
    if choice is not None:
        batch = replace(batch, chosen=choice.find(batch, [np.arange(len(samples))], list))
    loss, micro = policy_loss(config, build_plan(config)), pad(batch, np.arange(len(samples)))
    assert micro.old_log_probs is not None
    ratios = torch.zeros(micro.input_ids.shape)
    for row, own in enumerate(RATIOS):
        ratios[row, : len(own)] = torch.tensor(own).log()
    log_probs = (ratios + micro.old_log_probs).requires_grad_()
    outputs = TokenOutputs(log_probs=log_probs, entropy=torch.zeros(micro.input_ids.shape))
    scale = LossScale(samples.num_tokens, len(samples), LossScale(len(EXPERT), 1))
    assert micro.advantages is not None
    if not config.mix.drawn:
        total, _ = loss(outputs, micro, scale)
        (gradient,) = torch.autograd.grad(total, log_probs)
        return Worked(_rows(micro.advantages), _rows(gradient), float(total.detach()))
    mixed = mixed_loss(config, loss, config.mix.weight_at(1))
    own = torch.tensor([EXPERT]).log().requires_grad_()
    row = pad(Rows.of([[0] * len(EXPERT)], [[True] * len(EXPERT)]), np.zeros(1, np.int64))
    total = mixed(outputs, micro, scale)[0] + mixed(TokenOutputs(log_probs=own), row, scale)[0]
    gradient, of_expert = torch.autograd.grad(total, (log_probs, own))
    return Worked(_rows(micro.advantages), _rows(gradient), float(total.detach()), tuple(of_expert[0].tolist()))


def _rows(values: torch.Tensor) -> tuple[tuple[float, ...], ...]:
    return tuple(tuple(values[row, : len(own)].tolist()) for row, own in enumerate(RATIOS))


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
    if any(key.startswith("mix.") for key in PRESETS[name].settings):
        tree["mix"] = {"rows": {"expert": {"share": 0.2}}}
    config = validate(RLVRConfig, tree).config
    assert config is not None
    return config


def _samples() -> SampleBatch:
    lengths = [len(own) for own in RATIOS]
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


def _explained(preset: Preset) -> Iterator[str]:
    yield f"{preset.name}: {preset.paper}"
    yield "Formula"
    yield from (f"  {line}" for line in preset.formula)
    yield f"Settings: `algorithm: {preset.name}` fills these in; each can be set to another value"
    yield from (f"  {key}: {_yaml(value)}" for key, value in preset.settings.items())
    if preset.beside:
        yield f"  To be set in the YAML: {preset.beside}"
    if preset.pipeline != "rl":
        yield f"Worked: two answers{' to one prompt' * (preset.pipeline == 'dpo')}, one update"
        yield from (f"  {line}" for line in table(worked_lines(preset)))
        yield f"  loss of the update: {worked_rows(preset).loss:.4f}"
        return
    found = worked(preset.name)
    row = estimator_of(preset.settings["adv_estimator"])
    more = f", a critic says {VALUE:g} of every state" if row.needs_critic else ""
    more += f", the greedy answer has reward {GREEDY:g}" if row.needs_greedy else ""
    if policy_form_of(preset.settings.get("pg_variant", "ppo")).needs_old_log_probs:
        more = f" except {RARE_OLD:g} for token {RARE[1] + 1} of answer {RARE[0] + 1}{more}"
    yield f"Worked: one prompt, {len(REWARDS)} answers, one update; p_old is {OLD:g} everywhere{more}"
    rows = [("answer", "reward", "r of its tokens", "A", "d loss / d log p of its tokens")]
    for i, (reward, ratios) in enumerate(zip(REWARDS, RATIOS, strict=True)):
        rows.append(
            (str(i + 1), f"{reward:g}", numbers(ratios), numbers(found.advantages[i]), numbers(found.gradients[i]))
        )
    yield from (f"  {line}" for line in table(rows))
    if found.expert:
        told = f"d loss / d log p of its tokens {numbers(found.expert)}"
        yield f"  plus a row of an expert's, p_new  {numbers(EXPERT)}: {told}"
    yield f"  loss of the update: {found.loss:.4f}"


def _yaml(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


if __name__ == "__main__":
    sys.exit(main(["explain", *sys.argv[1:]]))
