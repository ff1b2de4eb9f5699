"""Words for what a run measures: titles of the usual metrics, names of phases, and numbers as a person writes them."""

import math
import re
from collections.abc import Mapping

_TITLES: Mapping[str, str] = {
    "rollout/reward_mean": "Reward",
    "rollout/sampled_reward_mean": "Reward before the experience operators",
    "rollout/kept_reward_mean": "Reward of the kept groups",
    "rollout/greedy_reward_mean": "Reward of the greedy responses",
    "rollout/reward_std": "Reward, standard deviation",
    "rollout/reward_min": "Reward, lowest",
    "rollout/reward_max": "Reward, highest",
    "rollout/success_mean": "Success (share)",
    "rollout/group_reward_std_mean": "Reward, standard deviation within a group",
    "rollout/group_equal_rewards_fraction": "Groups with equal rewards (share)",
    "rollout/kept_groups_fraction": "Groups that the filter kept (share)",
    "rollout/trained_rows_fraction": "Rows trained on (share)",
    "rollout/response_length_mean": "Response length (tokens)",
    "rollout/response_length_max": "Response length, longest (tokens)",
    "rollout/prompt_length_mean": "Prompt length (tokens)",
    "rollout/num_tokens": "Tokens of a step",
    "rollout/truncated_fraction": "Responses cut at the limit (share)",
    "rollout/failed_fraction": "Failed attempts (share)",
    "rollout/staleness_mean": "Age of the sampling policy (steps)",
    "rollout/staleness_max": "Age of the sampling policy, highest (steps)",
    "val/reward_mean": "Validation reward",
    "val/success_mean": "Validation success (share)",
    "val/response_length_mean": "Validation response length (tokens)",
    "val/failed_fraction": "Validation: failed attempts (share)",
    "val/nll_mean": "Validation loss per token (nats)",
    "val/loss": "Validation loss",
    "val/accuracy": "Validation pairs in the right order (share)",
    "val/reward_margin_mean": "Validation reward margin",
    "env/success_mean": "Success (share)",
    "env/crashes": "Environments that crashed",
    "env/hangs": "Environments that hung",
    "actor/entropy_mean": "Entropy (nats)",
    "actor/grad_norm": "Gradient norm",
    "actor/approx_kl": "Policy change within a step (KL)",
    "actor/kl_mean": "KL to the reference",
    "actor/kl_loss": "KL loss to the reference",
    "actor/clip_fraction": "Clipped tokens (share)",
    "actor/clip_low_fraction": "Tokens clipped below (share)",
    "actor/clip_high_fraction": "Tokens clipped above (share)",
    "actor/pg_loss": "Policy loss",
    "actor/ratio_mean": "Policy ratio",
    "actor/ratio_max": "Policy ratio, highest",
    "actor/advantage_mean": "Advantage",
    "actor/advantage_abs_mean": "Advantage, size",
    "actor/advantage_max": "Advantage, highest",
    "actor/learning_rate": "Learning rate",
    "actor/num_updates": "Updates of a step",
    "actor/teacher_kl_mean": "KL to the teacher",
    "critic/value_loss": "Critic: value loss",
    "critic/explained_variance": "Critic: explained variance (share)",
    "critic/grad_norm": "Critic: gradient norm",
    "critic/learning_rate": "Critic: learning rate",
    "train/nll_mean": "Loss per token (nats)",
    "train/loss": "Loss",
    "train/accuracy": "Pairs in the right order (share)",
    "train/reward_margin_mean": "Reward margin",
    "train/divergence_mean": "Divergence from the teacher",
    "train/grad_norm": "Gradient norm",
    "train/learning_rate": "Learning rate",
    "train/epochs": "Epochs",
    "train/trained_tokens": "Tokens trained on in a step",
    "train_infer/log_prob_diff_mean": "Engine against trainer (log-prob difference)",
    "train_infer/log_prob_diff_max": "Engine against trainer, largest (log-prob difference)",
    "goodput/trained_tokens_per_s": "Tokens trained per second",
    "goodput/trained_tokens_per_device_s": "Tokens trained per second and device",
    "goodput/useful_fraction": "Sampled tokens that were trained on (share)",
    "goodput/prefix_sharing_factor": "Tokens of trained rows by computed ones",
    "goodput/bubble_fraction": "Devices idle (share)",
    "goodput/mfu_fraction": "Model FLOPs utilisation (share)",
    "goodput/forecast_ratio": "Seconds of a step by those that were forecast",
    "throughput/samples_per_s": "Samples per second",
    "sync/sent_bytes": "Weights sent (bytes)",
    "sync/held_s": "Engines held for new weights (s)",
    "time/step_s": "Time per step (s)",
}  # fmt: skip
"""Titles by metric; docs/metrics.md has the formulas."""

_PHASES: Mapping[str, str] = {
    "rollout": "rollout", "gather": "gather rows", "hand_over": "hand over", "reward": "rewards", "score": "score",
    "old_log_probs": "old log-probs", "ref_log_probs": "reference log-probs", "teacher_log_probs": "teacher log-probs",
    "values": "values", "train": "train", "train_actor": "train the policy", "train_critic": "train the critic",
    "weight_sync": "publish weights", "validate": "validate", "checkpoint": "checkpoint", "dump": "write rollouts",
    "token_records": "token records", "logging_board": "send to trackers", "other": "other",
}  # fmt: skip

_PATTERNS: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"val/pass_at_(\d+)"), "Validation pass@{0}"),
    (re.compile(r"val/pass_at_(\d+)/(.+)"), "Validation pass@{0}: {1}"),
    (re.compile(r"val/([^/]+)/pass_at_(\d+)"), "Validation pass@{1}: {0}"),
    (re.compile(r"val/([^/]+)/reward_mean"), "Validation reward: {0}"),
    (re.compile(r"(?:env|val)/([^/]+)/return_mean"), "Return: {0}"),
    (re.compile(r"(?:env|val)/([^/]+)/success_mean"), "Success: {0} (share)"),
    (re.compile(r"env/([^/]+)/num_turns_mean"), "Turns: {0}"),
    (re.compile(r"busy/([^/]+)_fraction"), "{0} busy (share)"),
    (re.compile(r"train_infer/log_prob_diff_mean/lag_(\d+)"), "Engine against trainer after {0} steps"),
)
_TIME = re.compile(r"time/(?:[^/]+/)*([^/]+)_s")


def title_of(metric: str) -> str:
    """A title in words for a metric; its name where there is none.

    Examples: rollout/reward_mean -> "Reward", rollout/reward_mean/math -> "Reward: math",
    time/train_actor_s -> "Time: train the policy (s)", x/y -> "x/y".
    """
    if metric in _TITLES:
        return _TITLES[metric]
    for pattern, title in _PATTERNS:
        if match := pattern.fullmatch(metric):
            return title.format(*match.groups())
    if match := _TIME.fullmatch(metric):
        return f"Time: {phase_title(match[1])} (s)"
    whole, _, part = metric.rpartition("/")
    return f"{_TITLES[whole]}: {part}" if whole in _TITLES else metric


def phase_title(phase: str) -> str:
    """A phase of the step in words; its name where there are none. Example: weight_sync -> "publish weights"."""
    return _PHASES.get(phase, phase)


def number_text(value: float) -> str:
    """Writes a number as a person would: three figures, no exponent where few zeros do.

    Examples: 0.0078125 -> "0.008", 0.9141 -> "0.914", 12.345 -> "12.3", 4831.2 -> "4,831", 1e-6 -> "1e-6", 3.0 -> "3".
    """
    if not math.isfinite(value):
        return str(value)
    size = abs(value)
    if size >= 1e9 or 0 < size < 0.001:
        digits, _, exponent = f"{value:.2e}".partition("e")
        return f"{float(digits):g}e{int(exponent)}"
    if size >= 100 or value == round(value):
        return f"{value:,.0f}"
    return f"{value:.{1 if size >= 10 else 2 if size >= 1 else 3}f}"
