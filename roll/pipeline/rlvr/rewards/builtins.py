"""The rewards that come with roll: one row each, readable without importing any."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from roll.configs.load.aliases import LLM_JUDGE

RewardType = Literal["hard", "soft", "loose", "strict"]
ALL_TYPES: tuple[RewardType, ...] = ("hard", "soft", "loose", "strict")

HOME = "roll.pipeline.rlvr.rewards"


@dataclass(frozen=True)
class Builtin:
    """`path`: where the reward is. `is_quick`: cheap to build, so that a preflight builds it, which checks its
    arguments. `is_light`: takes no time worth mentioning, whatever the answer. `package`: what it cannot do without,
    and how to install it. `reward_types`: what it understands. `settings`: keys of the domain that are arguments of
    it."""

    path: str
    is_quick: bool = True
    is_light: bool = False
    package: tuple[str, str] | None = None
    reward_types: tuple[RewardType, ...] = ()
    settings: tuple[str, ...] = ()


BUILTINS: Mapping[str, Builtin] = {
    "math_rule": Builtin(
        f"{HOME}.math_rule:MathRule", is_quick=False, package=("math_verify", "pip install math-verify")
    ),
    "exact_match": Builtin(f"{HOME}.exact_match:ExactMatch"),
    "regex": Builtin(f"{HOME}.exact_match:Regex"),
    "multiple_choice": Builtin(f"{HOME}.choice:MultipleChoice", reward_types=ALL_TYPES),
    "general_rule": Builtin(f"{HOME}.choice:MultipleChoice", reward_types=ALL_TYPES),
    "crossthinkqa": Builtin(f"{HOME}.choice:CrossThinkQA", reward_types=ALL_TYPES),
    "ifeval": Builtin(
        f"{HOME}.ifeval.reward:IFEval", package=("py3langid", "pip install py3langid"), reward_types=("hard", "soft")
    ),
    "detection": Builtin(f"{HOME}.detection:Detection"),
    "countdown": Builtin(f"{HOME}.countdown:Countdown", is_light=True),
    "trinity_reward": Builtin(f"{HOME}.trinity:TrinityReward"),
    LLM_JUDGE: Builtin(
        "roll.pipeline.rlvr.judge.judge:Judge", is_quick=False, package=("openai", "pip install openai")
    ),
    "code_sandbox": Builtin(
        f"{HOME}.code.reward:CodeSandbox",
        reward_types=("hard", "soft"),
        settings=("use_local", "code_url", "timeout_s"),
    ),
    "verl_function": Builtin(f"{HOME}.verl_function:VerlFunction"),
    "none": Builtin(f"{HOME}.no_reward:NoReward", is_light=True),
    "overlong": Builtin(f"{HOME}.penalties:Overlong", is_light=True),
    "repetition": Builtin(f"{HOME}.penalties:Repetition", is_light=True),
    "short_response": Builtin(f"{HOME}.penalties:ShortResponse", is_light=True),
    "long_word": Builtin(f"{HOME}.penalties:LongWord", is_light=True),
}
PATHS: Mapping[str, str] = {name: row.path for name, row in BUILTINS.items()}
