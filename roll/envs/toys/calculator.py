"""A sum too hard for the head, and a calculator: the agent calls the tool, then answers."""

import random

from roll.envs.base import SUCCESS, VALID, Env, EnvStep
from roll.utils.answers.calculations import CalculationProblem, evaluate


class Calculator(Env):
    """Actions are `calc: 12 * 34` and `answer: 408`. The calculator takes two numbers at a time; a right answer earns
    1, any answer ends the episode."""

    reward_range = (0.0, 1.0)
    instruction = (
        "Work out the value. `calc: 12 * 34` asks the calculator, which takes two numbers at a time; `answer: 408` "
        "gives your answer."
    )

    def __init__(self, num_terms: int = 3, max_term: int = 99, max_steps: int | None = None):
        if num_terms < 2 or max_term < 2:
            raise ValueError("calculator needs num_terms and max_term of 2 or more")
        self.num_terms, self.max_term, self.max_steps = num_terms, max_term, max_steps

    def reset(self, seed: int) -> str:
        rng = random.Random(f"calculator {seed}")
        terms = [str(rng.randint(2, self.max_term)) for _ in range(self.num_terms)]
        self.expression = terms[0]
        for term in terms[1:]:
            self.expression += f" {rng.choice('+-*')} {term}"
        self.value, _ = evaluate(self.expression)
        self._steps = 0
        return f"What is {self.expression}?"

    def step(self, action: str) -> EnvStep:
        self._steps += 1
        word, _, rest = action.strip().partition(":")
        answered = right = valid = False
        try:
            value, numbers = evaluate(rest)
            if word.lower() == "answer":
                answered = valid = True
                right = value == self.value
                said = "Right." if right else f"Wrong, it is {self.value}."
            elif word.lower() == "calc" and len(numbers) <= 2:
                valid, said = True, f"{rest.strip()} = {value}"
            else:
                said = "The calculator takes two numbers at a time." if word.lower() == "calc" else "calc: or answer:?"
        except CalculationProblem as error:
            said = f"Not understood: {error}."
        truncated = not answered and self.max_steps is not None and self._steps >= self.max_steps
        return EnvStep(said, float(right), answered, truncated, {VALID: float(valid), SUCCESS: float(right)})

    def random_action(self, rng: random.Random) -> str:
        if rng.random() < 0.3:
            return f"answer: {rng.randint(0, self.max_term**2)}"
        return f"calc: {rng.randint(2, self.max_term)} {rng.choice('+-*')} {rng.randint(2, self.max_term)}"
