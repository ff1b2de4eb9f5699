"""The table of algorithms by name: the keys that `algorithm` fills in."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from roll.configs.presets.policy_losses import CLIP, GRADIENT, GROUP, KL, LOSS_PRESETS, Preset
from roll.configs.problems import did_you_mean
from roll.utils.text import show

# Algorithms by name in whose updates rows of an expert join those that the policy samples.

_POLICY = {"adv_estimator": "grpo", "pg_variant": "ppo", "pg_clip": 0.2, "loss_agg_mode": "seq-mean-token-mean"}
_MIXED = (
    "loss of an update = (1 - weight) x the mean over the policy's responses of the mean over their tokens + weight x "
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


# Rows of the table of algorithms by name for runs whose rows are there before them.

_H = "h = (log p - log p_ref of the better response) - (the same of the worse), sums over their tokens"
_MEAN = "loss of an update = the mean over its pairs"
_DPO = {"beta": 0.1, "ipo": False, "label_smoothing": 0.0, "reference_free": False}

ROW_PRESETS = (
    Preset(
        "sft",
        "maximum likelihood",
        {"train_on": "all"},
        ("loss of a token = -log p", "loss of an update = the mean over the tokens to learn"),
        pipeline="sft",
    ),
    Preset(
        "dpo",
        "Rafailov et al., arXiv 2305.18290",
        _DPO,
        (_H, "loss of a pair = -log sigmoid(beta h)", _MEAN),
        beside="sft_loss_coef, the better response's likelihood beside it (arXiv 2404.19733)",
        pipeline="dpo",
    ),
    Preset(
        "cdpo",
        "Mitchell, A note on DPO with noisy preferences, 2023",
        {**_DPO, "label_smoothing": 0.1},
        (_H, "loss of a pair = -(1 - s) log sigmoid(beta h) - s log sigmoid(-beta h), s = label_smoothing", _MEAN),
        pipeline="dpo",
    ),
    Preset(
        "ipo",
        "Azar et al., arXiv 2310.12036",
        {**_DPO, "ipo": True},
        (_H, "loss of a pair = (h - 1 / (2 beta))^2", _MEAN),
        pipeline="dpo",
    ),
)


_AGENTIC_FILTER = "roll.pipeline.agentic.settings:DropEqualRewards"
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
        (GROUP, CLIP, "loss of an update = the mean over its responses of the mean over their tokens"),
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
            "loss of an update = the mean over its responses of (sum over their tokens / longest possible response)",
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
        beside="the soft penalty on long responses: {reward: overlong} in reward_manager_config (docs/rewards.md)",
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
            "loss of a token = -min(s A, clip(s, 1 - low, 1 + high) A), s = the geometric mean of the response's p_new "
            "/ p_old",
            "loss of an update = the mean over its responses",
        ),
    ),
    Preset(
        "rloo",
        "Back to basics, arXiv 2402.14740",
        {"adv_estimator": "rloo", "pg_variant": "vanilla", "loss_agg_mode": "seq-mean-token-sum"},
        (
            "A = reward - mean of the others in the group",
            GRADIENT,
            "loss of an update = the mean over its responses of the sum over their tokens",
        ),
        beside="a KL in the reward: add_token_level_kl and init_kl_coef, with a section reference",
    ),
    Preset(
        "remax",
        "ReMax, arXiv 2310.10505",
        {"adv_estimator": "remax", "pg_variant": "vanilla", "loss_agg_mode": "seq-mean-token-sum"},
        (
            "A = reward - reward of the greedy response to the same prompt",
            GRADIENT,
            "loss of an update = the mean over its responses of the sum over their tokens",
        ),
        beside="a KL in the reward: add_token_level_kl and init_kl_coef, with a section reference; "
        "num_return_sequences_in_group: 1, as in the paper",
    ),
    Preset(
        "opo",
        "On-policy RL with optimal reward baseline, arXiv 2505.23585",
        {"adv_estimator": "opo", "pg_variant": "vanilla", "loss_agg_mode": "seq-mean-token-sum"},
        (
            "A = reward - mean of the group weighted by the lengths of its responses",
            GRADIENT,
            "loss of an update = the mean over its responses of the sum over their tokens",
        ),
        beside="exactly one update per step, without a KL and an entropy term",
    ),
    Preset(
        "optimal_token_baseline",
        "the estimator of this name in verl 0.7",
        {"adv_estimator": "optimal_token_baseline", "pg_variant": "ppo", "pg_clip": 0.2, "loss_agg_mode": "token-mean"},
        (
            "w of a token = 1 - 2 p + the sum of p^2 over the vocabulary; W = the sum of w up to the token",
            "B = the sum of W x reward / the sum of W, over the responses of the group at this token",
            "A = reward - B; B = 0 where no other response of the group is so long",
            CLIP,
            "loss of an update = the mean over its tokens",
        ),
    ),
    Preset(
        "gpg",
        "GPG, arXiv 2504.02546",
        {"adv_estimator": "gpg", "pg_variant": "vanilla", "loss_agg_mode": "token-mean"},
        (
            "A = (reward - mean of the group) x responses of the step / those in groups whose rewards differ",
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
        "gdpo",
        "GDPO, arXiv 2601.05242",
        {"adv_estimator": "gdpo", "pg_variant": "ppo", "pg_clip": 0.2, "loss_agg_mode": "seq-mean-token-mean"},
        (
            "A_k = (part k of the reward - its mean in the group) / its deviation in the group",
            "A = the weighted sum of the A_k / the deviation of this sum over the responses of the batch",
            CLIP,
            "loss of an update = the mean over its responses of the mean over their tokens",
        ),
        beside="gdpo_reward_keys, which names the parts, and gdpo_reward_weights",
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
            "loss of an update = the mean over its responses of the sum over their tokens",
        ),
    ),
    Preset(
        "raft",
        "RAFT, arXiv 2304.06767",
        {"adv_estimator": "raft", "raft_keep": "best", "pg_variant": "vanilla", "loss_agg_mode": "token-mean"},
        (
            "A = 1 for the best response of a group, 0 for the others",
            GRADIENT,
            "loss of an update = the mean over its tokens, those of all its responses",
        ),
        beside="raft_keep: positive for all responses with a reward above 0 (arXiv 2504.11343)",
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
        ("A = reward", GRADIENT, "loss of an update = the mean over its responses of the sum over their tokens"),
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
            "A = (reward - mean of the group) / the deviation of this over the responses of the batch",
            CLIP,
            "loss of an update = the mean over its tokens",
        ),
        beside=f"{KL}; kl_loss_type: k2",
    ),
    *LOSS_PRESETS,
    *MIX_PRESETS,
)
PRESETS: Mapping[str, Preset] = {row.name: row for row in (*_ROWS, *ROW_PRESETS)}
"""Algorithms by name, in the order in which messages list them."""


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
    """The same of pairs of responses."""
    return _of_kind("dpo", name)


def kind_of_algorithm(name: object) -> str | None:
    """The kind of run that has an algorithm of this name, None if there is none."""
    return PRESETS[name].pipeline if isinstance(name, str) and name in PRESETS else None


def _of_kind(pipeline: str, name: str) -> str:
    kind = kind_of_algorithm(name)
    if kind == pipeline:
        return name
    if kind == "rl":
        raise ValueError(f"{name} is reinforcement learning: pipeline: rlvr, or agentic")
    if kind is not None:
        raise ValueError(f"{name} is a pipeline of its own: examples/start_{kind}_pipeline.py")
    return _among([preset.name for preset in PRESETS.values() if preset.pipeline == pipeline], name)


def _among(names: Collection[str], name: str) -> str:
    if name not in names:
        raise ValueError(f"{show(name)} is not one of {', '.join(names)}.{did_you_mean(name, names)}")
    return name


# What `algorithm` puts into a tree, and says in a plan. What a YAML says itself stays.

_OFF_AT_NULL = ("value_clip", "group_filter_cls")
"""Keys of which null is a value; at all others it means that nothing is said."""


def fill_algorithm(filled: dict[str, Any]) -> None:
    """Puts in what the algorithm of a raw tree asks for, where the tree says nothing."""
    name = filled.get("algorithm")
    preset = PRESETS.get(name) if isinstance(name, str) else None
    for key, value in preset.settings.items() if preset else ():
        for holder, last in _places(filled, key):
            if holder.get(last) is None and not (last in holder and last in _OFF_AT_NULL):
                holder[last] = value


def _places(tree: dict[str, Any], key: str) -> Iterator[tuple[dict[str, Any], str]]:
    """Places of a key in the tree, as (mapping, last part); none if its section is missing."""
    section, _, last = key.rpartition(".")
    if not section:
        yield tree, key
        return
    name, star, _ = section.partition(".*")
    inner = tree.get(name)
    if not isinstance(inner, Mapping):
        return
    tree[name] = {key: dict(value) if star and isinstance(value, Mapping) else value for key, value in inner.items()}
    yield from ((entry, last) for entry in (tree[name].values() if star else [tree[name]]) if isinstance(entry, dict))


def preset_rows(name: str | None, value: Any) -> Iterator[tuple[str, str]]:
    """Rows of a plan: what the algorithm has set, and what the YAML says instead. `value` gives the value of a key."""
    if name is None:
        return
    plain = {key: wanted for key, wanted in PRESETS[name].settings.items() if "." not in key}
    active = {key: wanted for key, wanted in plain.items() if value(key) == (None if wanted == "none" else wanted)}
    yield "algorithm", f"{name} sets " + ", ".join(f"{key} {_text(wanted)}" for key, wanted in active.items())
    if others := [key for key in plain if key not in active]:
        changes = ", ".join(f"{key} {_text(value(key))} instead of {_text(plain[key])}" for key in others)
        yield "", f"the YAML has {changes}"


def _text(value: object) -> str:
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else f"{value}"
