"""The table of algorithms by name: the keys that `algorithm` fills in."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from roll.configs.presets.mix_presets import MIX_PRESETS
from roll.configs.presets.policy_losses import LOSS_PRESETS
from roll.configs.presets.preset import CLIP, GRADIENT, GROUP, KL, Preset
from roll.configs.presets.row_presets import ROW_PRESETS
from roll.configs.problems import did_you_mean
from roll.utils.text import show

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
            CLIP,
            "loss of an update = the mean over its tokens",
        ),
        beside="a KL in the reward, as InstructGPT has it: add_token_level_kl and init_kl_coef, with a reference",
    ),
    Preset(
        "grpo",
        "DeepSeekMath, arXiv 2402.03300",
        {"adv_estimator": "grpo", "pg_variant": "ppo", "pg_clip": 0.2, "loss_agg_mode": "seq-mean-token-mean"},
        (GROUP, CLIP, "loss of an update = the mean over its answers of the mean over their tokens"),
        beside=f"{KL} (.04 in the paper)",
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
            CLIP,
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
            GROUP,
            CLIP,
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
            GROUP,
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
            GRADIENT,
            "loss of an update = the mean over its answers of the sum over their tokens",
        ),
        beside="a KL in the reward: add_token_level_kl and init_kl_coef, with a section reference",
    ),
    Preset(
        "remax",
        "ReMax, arXiv 2310.10505",
        {"adv_estimator": "remax", "pg_variant": "vanilla", "loss_agg_mode": "seq-mean-token-sum"},
        (
            "A = reward - reward of the greedy answer to the same prompt",
            GRADIENT,
            "loss of an update = the mean over its answers of the sum over their tokens",
        ),
        beside="a KL in the reward: add_token_level_kl and init_kl_coef, with a section reference; "
        "num_return_sequences_in_group: 1, as in the paper",
    ),
    Preset(
        "opo",
        "On-policy RL with optimal reward baseline, arXiv 2505.23585",
        {"adv_estimator": "opo", "pg_variant": "vanilla", "loss_agg_mode": "seq-mean-token-sum"},
        (
            "A = reward - mean of the group weighted by the lengths of its answers",
            GRADIENT,
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
            GRADIENT,
            "loss of an update = the mean over its tokens",
        ),
    ),
    Preset(
        "grpo_passk",
        "Inference time objectives, arXiv 2503.19595",
        {"adv_estimator": "grpo_passk", "pg_variant": "ppo", "pg_clip": 0.2, "loss_agg_mode": "token-mean"},
        (
            "A = (best reward of the group - best of the others) / deviation of the group: 0 for all but the best",
            CLIP,
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
            GRADIENT,
            "loss of an update = the mean over its answers of the sum over their tokens",
        ),
    ),
    Preset(
        "raft",
        "RAFT, arXiv 2304.06767",
        {"adv_estimator": "raft", "raft_keep": "best", "pg_variant": "vanilla", "loss_agg_mode": "token-mean"},
        (
            "A = 1 for the best answer of a group, 0 for the others",
            GRADIENT,
            "loss of an update = the mean over its tokens, those of all its answers",
        ),
        beside="raft_keep: positive for all answers with a reward above 0 (arXiv 2504.11343)",
    ),
    Preset(
        "opmd",
        "Trinity-RFT, arXiv 2505.17826; Kimi k1.5, arXiv 2501.12599",
        {
            "adv_estimator": "opmd",
            "opmd_baseline": "mean",
            "pg_variant": "opmd",
            "opmd_tau": 1.0,
            "loss_agg_mode": "token-mean",
        },
        (
            "A = reward - mean of the group",
            "loss of a token = -A log p / (1 + tau)",
            "loss of an update = the mean over its tokens",
        ),
        beside=KL,
    ),
    Preset(
        "reinforce",
        "Williams 1992",
        {"adv_estimator": "reinforce", "pg_variant": "vanilla", "loss_agg_mode": "seq-mean-token-sum"},
        ("A = reward", GRADIENT, "loss of an update = the mean over its answers of the sum over their tokens"),
    ),
    Preset(
        "reinforce_plus_plus",
        "REINFORCE++, arXiv 2501.03262",
        {"adv_estimator": "reinforce_plus_plus", "pg_variant": "ppo", "pg_clip": 0.2, "loss_agg_mode": "token-mean"},
        ("A = reward, whitened over the tokens of the batch", CLIP, "loss of an update = the mean over its tokens"),
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
            CLIP,
            "loss of an update = the mean over its tokens",
        ),
        beside=f"{KL}; kl_loss_type: k2",
    ),
    *LOSS_PRESETS,
    *MIX_PRESETS,
)
PRESETS: Mapping[str, Preset] = {row.name: row for row in (*_ROWS, *ROW_PRESETS)}
"""By name, in the order in which messages list them."""


def any_algorithm(name: str) -> str:
    """The name, if it is one of the table, of whatever kind of run; else ValueError."""
    return _among(PRESETS, name)


def known_algorithm(name: str) -> str:
    """The name, if it is one of reinforcement learning; else ValueError that says what there is instead."""
    return _of_kind("rl", name)


def known_sft(name: str) -> str:
    """The same of fine-tuning."""
    return _of_kind("sft", name)


def known_dpo(name: str) -> str:
    """The same of pairs of answers."""
    return _of_kind("dpo", name)


def kind_of_algorithm(name: object) -> str | None:
    """The kind of run that has an algorithm of this name, None if there is none."""
    return PRESETS[name].pipeline if isinstance(name, str) and name in PRESETS else None


def _of_kind(pipeline: str, name: str) -> str:
    found = kind_of_algorithm(name)
    if found == pipeline:
        return name
    if found == "rl":
        raise ValueError(f"{name} is reinforcement learning: pipeline: rlvr, or agentic")
    if found is not None:
        raise ValueError(f"{name} is a pipeline of its own: examples/start_{found}_pipeline.py")
    return _among([preset.name for preset in PRESETS.values() if preset.pipeline == pipeline], name)


def _among(names: Collection[str], name: str) -> str:
    if name not in names:
        raise ValueError(f"{show(name)} is not one of {', '.join(names)}.{did_you_mean(name, names)}")
    return name
