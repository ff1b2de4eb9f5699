"""Rewards that compare texts: `exact_match` and `regex`."""

import re

from roll.rewards.base import RewardInput, RewardResult, checks_rows, has_form, requires
from roll.utils.truths import truth_problem


@requires("ground_truth")
@checks_rows(truth_problem)
class ExactMatch:
    r"""1 if the answer is the ground truth, or one of those that it accepts, 0 if not.

    The answer is the last match of `pattern` behind the thinking: its group if it has one (it may have one at most),
    the whole match otherwise. A pattern that names the marks of thinking may begin before. Without a pattern it is all
    that follows the thinking. No match, and thinking that never ends, score 0.

    Example: pattern `<answer>(.*?)</answer>` and ground truth "1234": "<answer> 1234</answer>" scores 1.
    """

    def __init__(self, pattern: str | None = None, strip: bool = True, ignore_case: bool = False):
        self._pattern = None if pattern is None else re.compile(pattern, re.DOTALL)
        if self._pattern is not None and self._pattern.groups > 1:
            raise ValueError(
                f"pattern {pattern!r} has {self._pattern.groups} groups, it may have one: the answer. "
                "Write the others as (?:...)"
            )
        self._strip = strip
        self._ignore_case = ignore_case

    def __call__(self, sample: RewardInput) -> RewardResult:
        answer, accepted = self._extracted(sample), map(self._normal, sample.accepted)
        correct = answer is not None and self._normal(answer) in accepted
        return RewardResult(float(correct), {"answer_found": float(answer is not None)}, {"answer": answer})

    def _extracted(self, sample: RewardInput) -> str | None:
        text, answer = sample.response_text, sample.answer
        if self._pattern is None:
            return answer if answer or not text else None
        whole = [match for match in self._pattern.finditer(text) if match.end() > len(text) - len(answer)]
        matches = list(self._pattern.finditer(answer)) or (whole if answer else [])
        return matches[-1][self._pattern.groups] if matches else None

    def _normal(self, text: str) -> str:
        text = text.strip() if self._strip else text
        return text.casefold() if self._ignore_case else text


@requires()
class Regex:
    """`score` if the whole response, thinking and its marks included, matches `pattern` (with `.` matching line ends
    too), `otherwise` if not."""

    def __init__(self, pattern: str, score: float = 1.0, otherwise: float = 0.0):
        self._pattern = re.compile(pattern, re.DOTALL)
        self._score = float(score)
        self._otherwise = float(otherwise)

    def __call__(self, sample: RewardInput) -> float:
        fits = has_form(self._pattern.fullmatch, self._pattern.pattern, sample.response_text)
        return self._score if fits else self._otherwise


# No reward, for domains that need none, such as those of pure on-policy distillation.


@requires()
class NoReward:
    """0 for every answer, of which nothing is read."""

    def __call__(self, sample: RewardInput) -> float:
        return 0.0
