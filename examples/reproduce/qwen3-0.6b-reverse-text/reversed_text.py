"""Similarity of the text in `<reversed_text>` to the row's prompt from its end to its beginning."""

import re
from difflib import SequenceMatcher

from roll.rewards.base import RewardInput, requires


@requires("prompt")
def similarity(sample: RewardInput) -> float:
    """0 to 1; 0 without the tags."""
    found = re.search(r"<reversed_text>(.*?)</reversed_text>", sample.answer, re.DOTALL)
    return SequenceMatcher(None, found[1].strip() if found else "", sample.payload["prompt"][::-1]).ratio()
