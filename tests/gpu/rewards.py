"""The reward of the checks' runs."""

from __future__ import annotations

import hashlib

from roll.rewards.base import RewardInput


def chance(sample: RewardInput) -> float:
    """A number between 0 and 1 that depends on the answer alone: answers of random weights differ in it, so that there
    is something to learn from."""
    return int(hashlib.sha256(sample.raw_text.encode()).hexdigest()[:8], 16) / 16**8
