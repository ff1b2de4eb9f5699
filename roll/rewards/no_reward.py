"""No reward, for domains that need none, such as those of pure on-policy distillation."""

from __future__ import annotations

from roll.rewards.base import RewardInput, requires


@requires()
class NoReward:
    """0 for every answer, of which nothing is read."""

    def __call__(self, sample: RewardInput) -> float:
        return 0.0
