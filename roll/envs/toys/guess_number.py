"""Guess a number: the answer to each guess is higher or lower."""

import random
from collections.abc import Iterator

from roll.envs.base import SUCCESS, VALID, Env, EnvStep


class GuessNumber(Env):
    """The right number earns 1 and ends the episode. After `max_guesses` it is over."""

    reward_range = (0.0, 1.0)

    def __init__(self, low: int = 1, high: int = 20, max_guesses: int = 6, max_steps: int | None = None):
        if low >= high or max_guesses < 1:
            raise ValueError("guess_number needs low below high, and at least one guess")
        self.low, self.high = low, high
        self.max_guesses = min(max_guesses, max_steps or max_guesses)
        self.instruction = f"Guess a whole number from {low} to {high}. You are told whether it is higher or lower."

    def reset(self, seed: int) -> str:
        self._number = random.Random(f"guess_number {seed}").randint(self.low, self.high)
        self._guesses = 0
        return f"From {self.low} to {self.high}. {self.max_guesses} guesses."

    def step(self, action: str) -> EnvStep:
        self._guesses += 1
        text = action.strip()
        guess = int(text) if text.lstrip("-").isascii() and text.lstrip("-").isdigit() and len(text) < 12 else None
        right = guess == self._number
        if guess is None:
            said = "That is no number."
        elif right:
            said = "Right."
        else:
            said = "Higher." if guess < self._number else "Lower."
        is_over = not right and self._guesses >= self.max_guesses
        return EnvStep(
            f"{said} {self.max_guesses - self._guesses} guesses left.",
            float(right),
            right,
            is_over,
            {VALID: float(guess is not None), SUCCESS: float(right)},
        )

    def blind_plans(self, max_steps: int) -> Iterator[list[str]]:
        yield [str(number) for number in range(self.low, self.high + 1)]  # different ones: which does not matter

    def random_action(self, rng: random.Random) -> str:
        return str(rng.randint(self.low, self.high))
