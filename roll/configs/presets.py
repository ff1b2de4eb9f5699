"""The table of algorithms by name: the keys that `algorithm` fills in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from roll.configs.problems import did_you_mean
from roll.utils.text import show


@dataclass(frozen=True)
class Preset:
    """`settings` by the keys of a YAML; `*` stands for each entry of a section. `formula` are the lines that explain
    it, with `beside` for what the paper has and the preset leaves to the YAML."""

    name: str
    paper: str
    settings: Mapping[str, Any]
    formula: tuple[str, ...]
    beside: str = ""


_GROUP = "A = (reward - mean of the group) / deviation of the group, the same for all tokens of an answer"
_CLIP = "loss of a token = -min(r A, clip(r, 1 - low, 1 + high) A), r = p_new / p_old"
_GRADIENT = "loss of a token = -A log p"
_KL = "a KL to the reference: use_kl_loss and kl_loss_coef, with a section reference"
_AGENTIC_FILTER = "roll.pipeline.agentic.group_filters:DropEqualRewards"
_FILTER = {"type": "std_filter", "filter_args": {"std_threshold": 0.0}}

_ROWS = (
    Preset(
        "ppo",
        "Schulman et al., arXiv 1707.06347; GAE: arXiv 1506.02438",
        {
            "adv_estimator": "gae",
            "gamma": 1.0,
            "lambd": 0.95,
            "whiten_advantages": True,
            "pg_variant": "ppo",
            "pg_clip": 0.2,
            "value_clip": 0.2,
            "loss_agg_mode": "token-mean",
        },
        (
            "delta_t = reward_t + gamma V_(t+1) - V_t, A_t = delta_t + gamma lambd A_(t+1), V from the critic",
            "A is whitened over the batch",
            _CLIP,
            "loss of an update = the mean over its tokens",
        ),
        beside="a KL in the reward, as InstructGPT has it: add_token_level_kl and init_kl_coef, with a reference",
    ),
    Preset(
        "grpo",
        "DeepSeekMath, arXiv 2402.03300",
        {"adv_estimator": "grpo", "pg_variant": "ppo", "pg_clip": 0.2, "loss_agg_mode": "seq-mean-token-mean"},
        (_GROUP, _CLIP, "loss of an update = the mean over its answers of the mean over their tokens"),
        beside=f"{_KL} (.04 in the paper)",
    ),
    Preset(
        "dr_grpo",
        "Understanding R1-Zero-like training, arXiv 2503.20783",
        {
            "adv_estimator": "grpo",
            "norm_std_type": "none",
            "pg_variant": "ppo",
            "pg_clip": 0.2,
            "loss_agg_mode": "seq-mean-token-sum-norm",
        },
        (
            "A = reward - mean of the group",
            _CLIP,
            "loss of an update = the mean over its answers of (sum over their tokens / longest possible answer)",
        ),
    ),
    Preset(
        "dapo",
        "DAPO, arXiv 2503.14476",
        {
            "adv_estimator": "grpo",
            "pg_variant": "ppo",
            "use_pg_clip_range": True,
            "pg_clip_low": 0.2,
            "pg_clip_high": 0.28,
            "loss_agg_mode": "token-mean",
            "use_kl_loss": False,
            "add_token_level_kl": False,
            "is_use_additional_prompts": True,
            "rewards.*.query_filter_config": _FILTER,
            "train_env_manager.group_filter_cls": _AGENTIC_FILTER,
        },
        (
            _GROUP,
            _CLIP,
            "loss of an update = the mean over its tokens",
            "groups with equal rewards are replaced by others",
        ),
        beside="the soft penalty on long answers: {reward: overlong} in reward_manager_config (docs/rewards.md)",
    ),
    Preset(
        "gspo",
        "GSPO, arXiv 2507.18071",
        {
            "adv_estimator": "grpo",
            "pg_variant": "ppo",
            "importance_sampling": "seq",
            "use_pg_clip_range": True,
            "pg_clip_low": 3e-4,
            "pg_clip_high": 4e-4,
            "loss_agg_mode": "seq-mean-token-mean",
        },
        (
            _GROUP,
            "loss of a token = -min(s A, clip(s, 1 - low, 1 + high) A), s = the geometric mean of the answer's p_new / "
            "p_old",
            "loss of an update = the mean over its answers",
        ),
    ),
    Preset(
        "rloo",
        "Back to basics, arXiv 2402.14740",
        {"adv_estimator": "rloo", "pg_variant": "vanilla", "loss_agg_mode": "seq-mean-token-sum"},
        (
            "A = reward - mean of the others in the group",
            _GRADIENT,
            "loss of an update = the mean over its answers of the sum over their tokens",
        ),
        beside="a KL in the reward: add_token_level_kl and init_kl_coef, with a section reference",
    ),
    Preset(
        "opo",
        "On-policy RL with optimal reward baseline, arXiv 2505.23585",
        {"adv_estimator": "opo", "pg_variant": "vanilla", "loss_agg_mode": "seq-mean-token-sum"},
        (
            "A = reward - mean of the group weighted by the lengths of its answers",
            _GRADIENT,
            "loss of an update = the mean over its answers of the sum over their tokens",
        ),
        beside="exactly one update per step, without a KL and an entropy term",
    ),
    Preset(
        "gpg",
        "GPG, arXiv 2504.02546",
        {"adv_estimator": "gpg", "pg_variant": "vanilla", "loss_agg_mode": "token-mean"},
        (
            "A = (reward - mean of the group) x answers of the step / those in groups whose rewards differ",
            _GRADIENT,
            "loss of an update = the mean over its tokens",
        ),
    ),
    Preset(
        "grpo_passk",
        "Inference time objectives, arXiv 2503.19595",
        {"adv_estimator": "grpo_passk", "pg_variant": "ppo", "pg_clip": 0.2, "loss_agg_mode": "token-mean"},
        (
            "A = (best reward of the group - best of the others) / deviation of the group: 0 for all but the best",
            _CLIP,
            "loss of an update = the mean over its tokens",
        ),
        beside="norm_std_type: none leaves the deviation out, as the paper does",
    ),
    Preset(
        "asymre",
        "Asymmetric REINFORCE, arXiv 2506.20520",
        {
            "adv_estimator": "asymre",
            "asymre_baseline_shift": -0.1,
            "pg_variant": "vanilla",
            "loss_agg_mode": "seq-mean-token-sum",
        },
        (
            "A = reward - (mean of the group + shift)",
            _GRADIENT,
            "loss of an update = the mean over its answers of the sum over their tokens",
        ),
    ),
    Preset(
        "reinforce",
        "Williams 1992",
        {"adv_estimator": "reinforce", "pg_variant": "vanilla", "loss_agg_mode": "seq-mean-token-sum"},
        ("A = reward", _GRADIENT, "loss of an update = the mean over its answers of the sum over their tokens"),
    ),
    Preset(
        "reinforce_plus_plus",
        "REINFORCE++, arXiv 2501.03262",
        {"adv_estimator": "reinforce_plus_plus", "pg_variant": "ppo", "pg_clip": 0.2, "loss_agg_mode": "token-mean"},
        ("A = reward, whitened over the tokens of the batch", _CLIP, "loss of an update = the mean over its tokens"),
        beside="a KL in the reward: add_token_level_kl and init_kl_coef, with a section reference",
    ),
    Preset(
        "reinforce_plus_plus_baseline",
        "REINFORCE++, arXiv 2501.03262",
        {
            "adv_estimator": "reinforce_plus_plus_baseline",
            "pg_variant": "ppo",
            "pg_clip": 0.2,
            "loss_agg_mode": "token-mean",
        },
        (
            "A = reward - mean of the group, whitened over the tokens of the batch",
            _CLIP,
            "loss of an update = the mean over its tokens",
        ),
        beside=f"{_KL}; kl_loss_type: k2",
    ),
    Preset(
        "cispo",
        "MiniMax-M1, arXiv 2506.13585",
        {
            "adv_estimator": "grpo",
            "pg_variant": "cispo",
            "cispo_epsilon_low": 1.0,
            "cispo_epsilon_high": 0.28,
            "loss_agg_mode": "token-mean",
        },
        (
            _GROUP,
            "loss of a token = -w A log p, w = clip(r, 1 - low, 1 + high) without a gradient",
            "loss of an update = the mean over its tokens",
        ),
        beside="the paper names no number for high; low 1 bounds nothing, as there",
    ),
    Preset(
        "topr",
        "TOPR, arXiv 2503.14286",
        {
            "adv_estimator": "grpo",
            "norm_std_type": "none",
            "pg_variant": "topr",
            "importance_sampling": "seq",
            "loss_agg_mode": "seq-mean-token-sum",
        },
        (
            "A = reward - mean of the group",
            "loss of a token = -A log p where A > 0, -min(s, 1) A log p where A < 0, s = the geometric mean of the "
            "answer's p_new / p_old",
            "loss of an update = the mean over its answers of the sum over their tokens",
        ),
    ),
    Preset(
        "sapo",
        "SAPO, arXiv 2511.20347",
        {"adv_estimator": "grpo", "pg_variant": "sapo", "loss_agg_mode": "seq-mean-token-mean"},
        (
            _GROUP,
            "loss of a token = -4 / tau sigmoid(tau (r - 1)) A, r = p_new / p_old, another tau where A > 0",
            "loss of an update = the mean over its answers of the mean over their tokens",
        ),
    ),
    Preset(
        "gmpo",
        "GMPO, arXiv 2507.20673",
        {
            "adv_estimator": "grpo",
            "pg_variant": "gmpo",
            "gmpo_clip_low": 0.4,
            "gmpo_clip_high": 0.4,
            "loss_agg_mode": "seq-mean-token-mean",
        },
        (
            _GROUP,
            "loss of a token = -s A, s = the geometric mean of the answer's r = p_new / p_old, each kept below e^high "
            "where A > 0 and above e^-low where A < 0",
            "loss of an update = the mean over its answers",
        ),
    ),
    Preset(
        "kimi15",
        "Kimi k1.5, arXiv 2501.12599",
        {
            "adv_estimator": "grpo",
            "norm_std_type": "none",
            "pg_variant": "kimi15",
            "importance_sampling": "seq",
            "loss_agg_mode": "seq-mean-token-sum",
        },
        (
            "A = reward - mean of the group",
            "loss of a token = -A log p + tau / 2 (log s)^2, s = the geometric mean of the answer's p_new / p_old",
            "loss of an update = the mean over its answers of the sum over their tokens",
        ),
    ),
)
PRESETS: Mapping[str, Preset] = {row.name: row for row in _ROWS}
"""By name, in the order in which messages list them."""

_OTHER_SCRIPTS: Mapping[str, str] = {"sft": "start_sft_pipeline.py", "dpo": "start_dpo_pipeline.py"}


def known_algorithm(name: str) -> str:
    """The name, if it is one of the table; else ValueError that says what there is instead."""
    if name in _OTHER_SCRIPTS:
        raise ValueError(f"{name} is a pipeline of its own: examples/{_OTHER_SCRIPTS[name]}")
    if name not in PRESETS:
        raise ValueError(f"{show(name)} is not one of {', '.join(PRESETS)}.{did_you_mean(name, PRESETS)}")
    return name
