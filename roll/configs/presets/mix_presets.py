"""Algorithms by name in whose updates rows of an expert join those that the policy samples."""

from __future__ import annotations

from roll.configs.presets.preset import CLIP, GROUP, Preset

_POLICY = {"adv_estimator": "grpo", "pg_variant": "ppo", "pg_clip": 0.2, "loss_agg_mode": "seq-mean-token-mean"}
_MIXED = (
    "loss of an update = (1 - weight) x the mean over the policy's answers of the mean over their tokens + weight x "
    "the mean over the expert's tokens"
)
_BESIDE = "mix.rows, which names the expert's rows and their share"

MIX_PRESETS = (
    Preset(
        "mix",
        "Trinity-RFT, arXiv 2505.17826",
        {**_POLICY, "mix.weight": 0.1, "mix.token_weights": "none", "mix.loss_agg_mode": "token-mean"},
        (
            GROUP,
            CLIP,
            "loss of an expert's token = -log p",
            _MIXED,
        ),
        beside=_BESIDE,
    ),
    Preset(
        "mix_chord",
        "CHORD, arXiv 2508.11408",
        {**_POLICY, "mix.weight": 0.1, "mix.token_weights": "uncertain", "mix.loss_agg_mode": "token-mean"},
        (
            GROUP,
            CLIP,
            "loss of an expert's token = -p (1 - p) log p, without a gradient through p (1 - p)",
            _MIXED,
        ),
        beside=f"{_BESIDE}; mix.warmup_steps, mix.decay_steps and mix.final_weight for a weight that changes",
    ),
)
