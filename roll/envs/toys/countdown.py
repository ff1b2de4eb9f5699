"""Countdown: make a number from given ones, each used at most once."""

import random
from collections import Counter

from roll.envs.base import SUCCESS, VALID, Env, EnvStep
from roll.utils.answers.calculations import CalculationProblem, evaluate


class Countdown(Env):
    """The target is the value of a random calculation with some of the numbers, so it can be made. Hitting it earns 1
    and ends the episode; a miss is answered with its value, up to `max_tries` times."""

    reward_range = (0.0, 1.0)
    instruction = (
        "Write a calculation with + - * / and parentheses that has the target as its value. Use each number at most "
        "once. Example of an action: (3 + 5) * 2"
    )

    def __init__(self, num_numbers: int = 4, max_number: int = 25, max_tries: int = 5, max_steps: int | None = None):
        if num_numbers < 2 or max_number < 2 or max_tries < 1:
            raise ValueError("countdown needs num_numbers and max_number of 2 or more, and at least one try")
        self.num_numbers, self.max_number = num_numbers, max_number
        self.max_tries = min(max_tries, max_steps or max_tries)

    def reset(self, seed: int) -> str:
        rng = random.Random(f"countdown {seed}")
        while True:
            self.numbers = [rng.randint(1, self.max_number) for _ in range(self.num_numbers)]
            used = rng.sample(self.numbers, rng.randint(2, self.num_numbers))
            text = str(used[0])
            for number in used[1:]:
                text = f"({text} {rng.choice('+-*')} {number})"
            self.target, _ = evaluate(text)
            self.solution = text
            if 0 < self.target <= 100 and self.target not in self.numbers:
                break
        self._tries = 0
        return f"Numbers: {' '.join(map(str, self.numbers))}\nTarget: {self.target}"

    def step(self, action: str) -> EnvStep:
        self._tries += 1
        try:
            value, used = evaluate(action.partition("=")[0])
            surplus = Counter(used) - Counter(self.numbers)
            problem = f"{next(iter(surplus))} is not there, or used too often" if surplus else ""
        except CalculationProblem as error:
            value, problem = None, str(error)
        solved = not problem and value == self.target
        said = f"No: {problem}." if problem else f"{action.strip()} is {value}."
        is_over = not solved and self._tries >= self.max_tries
        observation = f"{said}\nNumbers: {' '.join(map(str, self.numbers))}\nTarget: {self.target}"
        return EnvStep(
            observation, float(solved), solved, is_over, {VALID: float(value is not None), SUCCESS: float(solved)}
        )

    def random_action(self, rng: random.Random) -> str:
        first, second = rng.sample(self.numbers, 2)
        return f"{first} {rng.choice('+-*')} {second}"
