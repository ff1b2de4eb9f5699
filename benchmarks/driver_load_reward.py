"""A reward that costs nothing."""

from roll.rewards.base import RewardInput


def length(sample: RewardInput) -> float:
    return float(len(sample.response_text) % 2)
