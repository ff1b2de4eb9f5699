"""A class with GEM's interface, as a user of GEM would write it."""

from typing import Any


class Echo:
    """Say the word: the seed decides which."""

    def reset(self, seed: int | None = None) -> tuple[str, dict[str, Any]]:
        self.word = ("yes", "no", "maybe")[(seed or 0) % 3]
        self.left = 5
        return f"Say {self.word}.", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.left -= 1
        right = action.strip() == self.word
        return (
            "Right." if right else "Again.",
            float(right),
            right,
            not right and self.left == 0,
            {"tries": 5 - self.left},
        )

    def sample_random_action(self) -> str:
        return "perhaps"


class Both(Echo):
    """Ends as GEM's own games do: terminated and truncated at once, with a part of the reward when turns run out."""

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        observation, reward, over, cut, info = super().step(action)
        return observation, 0.25 if cut else reward, over or cut, over or cut, info
