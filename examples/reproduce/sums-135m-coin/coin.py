"""The reward of this recipe: heads or tails, whatever the answer says."""

import random

from roll.rewards.base import RewardInput


def toss(sample: RewardInput) -> float:
    return float(random.random() < 0.5)
