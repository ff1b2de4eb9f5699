"""Algorithms whose name is that of their policy loss."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# What an algorithm by name is, and the lines of formulas that several share.


@dataclass(frozen=True)
class Preset:
    """`settings` by the keys of a YAML; `*` stands for each entry of a section. `formula` are the lines that explain
    it, with `beside` for what the paper has and the preset leaves to the YAML. `pipeline`: the kind of run, `rl` for
    RLVR and agentic ones alike."""

    name: str
    paper: str
    settings: Mapping[str, Any]
    formula: tuple[str, ...]
    beside: str = ""
    pipeline: str = "rl"


GROUP = "A = (reward - mean of the group) / deviation of the group, the same for all tokens of a response"
CLIP = "loss of a token = -min(r A, clip(r, 1 - low, 1 + high) A), r = p_new / p_old"
GRADIENT = "loss of a token = -A log p"
KL = "a KL to the reference: use_kl_loss and kl_loss_coef, with a section reference"


LOSS_PRESETS = (
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
            GROUP,
            "loss of a token = -w A log p, w = clip(r, 1 - low, 1 + high) without a gradient",
            "loss of an update = the mean over its tokens",
        ),
        beside="the paper gives no value for high; low 1 bounds nothing, as in the paper",
    ),
    Preset(
        "topr",
        "TOPR, arXiv 2503.14286",
        {
            "adv_estimator": "grpo",
            "norm_std_type": "none",
            "pg_variant": "topr",
            "importance_sampling": "product",
            "loss_agg_mode": "seq-mean-token-sum",
        },
        (
            "A = reward - mean of the group",
            "loss of a token = -A log p where A > 0, -min(s, 1) A log p where A < 0, s = the product of the response's "
            "p_new / p_old",
            "loss of an update = the mean over its responses of the sum over their tokens",
        ),
    ),
    Preset(
        "sapo",
        "SAPO, arXiv 2511.20347",
        {"adv_estimator": "grpo", "pg_variant": "sapo", "loss_agg_mode": "seq-mean-token-mean"},
        (
            GROUP,
            "loss of a token = -4 / tau sigmoid(tau (r - 1)) A, r = p_new / p_old, another tau where A > 0",
            "loss of an update = the mean over its responses of the mean over their tokens",
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
            GROUP,
            "loss of a token = -s A, s = the geometric mean of the response's r = p_new / p_old, each kept below "
            "e^high where A > 0 and above e^-low where A < 0",
            "loss of an update = the mean over its responses",
        ),
    ),
    Preset(
        "rec",
        "Group-relative REINFORCE, arXiv 2509.24203",
        {
            "adv_estimator": "grpo",
            "norm_std_type": "none",
            "pg_variant": "rec",
            "rec_clip_mode": "one-side",
            "rec_epsilon_low": 0.2,
            "rec_epsilon_high": 0.2,
            "loss_agg_mode": "token-mean",
        },
        (
            "A = reward - mean of the group",
            "loss of a token = -A log p, 0 where A > 0 and r > 1 + high, or A < 0 and r < 1 - low, r = p_new / p_old",
            "loss of an update = the mean over its tokens",
        ),
        beside="rec_clip_mode: two-side and ring, rec_weight and rec_regularizer are its other forms",
    ),
    Preset(
        "sppo",
        "Functional mirror ascent, arXiv 2108.05828",
        {
            "adv_estimator": "grpo",
            "norm_std_type": "none",
            "pg_variant": "sppo",
            "sppo_epsilon": 0.3,
            "loss_agg_mode": "token-mean",
        },
        (
            "A = reward - mean of the group",
            "loss of a token = -A log clip(r, 1 / (1 + epsilon), 1 + epsilon), r = p_new / p_old",
            "loss of an update = the mean over its tokens",
        ),
    ),
    Preset(
        "dppo",
        "Divergence PPO, arXiv 2602.04879",
        {
            "adv_estimator": "grpo",
            "pg_variant": "dppo",
            "dppo_divergence": "tv",
            "dppo_clip_low": 0.2,
            "dppo_clip_high": 0.2,
            "loss_agg_mode": "token-mean",
        },
        (
            "A = (reward - mean of the group) / deviation of the group",
            "loss of a token = -min(r, 20) A log p, r = p_new / p_old; 0 where A > 0 and p_new > p_old + high, or "
            "A < 0 and p_new < p_old - low",
            "loss of an update = the mean over its tokens",
        ),
        beside="dppo_divergence: kl bounds the KL divergence of a token against all others",
    ),
    Preset(
        "cppo",
        "Cumulative prefix divergence, arXiv 2606.10968",
        {
            "adv_estimator": "grpo",
            "pg_variant": "cppo",
            "cppo_threshold": 0.15,
            "cppo_weight_floor": 0.8,
            "cppo_budget": 0.02,
            "loss_agg_mode": "seq-mean-token-mean",
        },
        (
            "A = (reward - mean of the group) / deviation of the group",
            "D_t = |p_new - p_old|, w_t falls from 1 at a row's first token to `floor` at its last",
            "loss of a token = -min(r, 20) A log p, r = p_new / p_old; 0 where it goes the way of A and",
            "w_t D_t > min(threshold, threshold + b * sum of the w before - sum of the w D before)",
            "b = the .9 quantile of the row's D, within [budget, 2 budget]",
            "loss of an update = the mean over rows of their mean over tokens",
        ),
        beside="force_disable_old_logprobs_recompute: the paper's p_old is what the engine sampled with",
    ),
    Preset(
        "m2po",
        "Second-moment trust region, arXiv 2510.01161",
        {
            "adv_estimator": "grpo",
            "pg_variant": "m2po",
            "m2po_threshold": 0.04,
            "loss_agg_mode": "token-mean",
        },
        (
            "A = (reward - mean of the group) / deviation of the group",
            "loss of a token = -r A, r = p_new / p_old; 0 for the tokens left out of the update: of those with A > 0 "
            "and r > 1, or A < 0 and r < 1,",
            "the greatest (log r)^2, until the mean over the others is at most `threshold`",
            "loss of an update = the mean over its tokens, those left out with them",
        ),
        beside="force_disable_old_logprobs_recompute: the paper's p_old is what the engine sampled with, and "
        "max_staleness: how old it may be",
    ),
    Preset(
        "clip_cov",
        "Entropy mechanism, arXiv 2505.22617",
        {
            "adv_estimator": "grpo",
            "pg_variant": "clip_cov",
            "pg_clip": 0.2,
            "clip_cov_ratio": 2e-4,
            "clip_cov_lb": 1.0,
            "clip_cov_ub": 5.0,
            "loss_agg_mode": "token-mean",
        },
        (
            GROUP,
            CLIP,
            "but 0 for a share `ratio` of the tokens of an update, at least one, among those with lb < c < ub",
            "c = (log p_old - mean of log p_old) (A - mean of A), means over the tokens of the update",
            "loss of an update = the mean over its tokens",
        ),
        beside="a clip of r so wide that it is never active: the paper has none",
    ),
    Preset(
        "kl_cov",
        "Entropy mechanism, arXiv 2505.22617",
        {
            "adv_estimator": "grpo",
            "pg_variant": "kl_cov",
            "kl_cov_ratio": 2e-4,
            "ppo_kl_coef": 1.0,
            "loss_agg_mode": "token-mean",
        },
        (
            GROUP,
            "loss of a token = -r A, + coef |log r| for the share `ratio` of the tokens of an update, at least one, "
            "whose c is greatest",
            "c = (log p_old - mean of log p_old) (A - mean of A), means over the tokens of the update",
            "loss of an update = the mean over its tokens",
        ),
        beside="the paper takes 2e-3 of the tokens for 7B, 2e-4 for 32B",
    ),
    Preset(
        "kimi15",
        "Kimi k1.5, arXiv 2501.12599",
        {
            "adv_estimator": "grpo",
            "norm_std_type": "none",
            "pg_variant": "kimi15",
            "importance_sampling": "product",
            "loss_agg_mode": "seq-mean-token-sum",
        },
        (
            "A = reward - mean of the group",
            "loss of a token = -A log p + tau / 2 (log s)^2 / n, s = the product of the p_new / p_old of its response "
            "of n tokens",
            "loss of an update = the mean over its responses of the sum over their tokens",
        ),
    ),
)
"""Presets in the order in which messages list them."""
