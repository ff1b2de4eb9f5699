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
        "roll.rewards.math_rule:MathRule", is_quick=False, package=("math_verify", "pip install math-verify")
    ),
    "exact_match": Builtin("roll.rewards.texts:ExactMatch"),
    "regex": Builtin("roll.rewards.texts:Regex"),
    "multiple_choice": Builtin("roll.rewards.choice:MultipleChoice", reward_types=ALL_TYPES),
    "general_rule": Builtin("roll.rewards.choice:MultipleChoice", reward_types=ALL_TYPES),
    "crossthinkqa": Builtin("roll.rewards.choice:CrossThinkQA", reward_types=ALL_TYPES),
    "ifeval": Builtin(
        "roll.rewards.ifeval.reward:IFEval",
        package=("py3langid", "pip install py3langid"),
        reward_types=("hard", "soft"),
    ),
    "detection": Builtin("roll.rewards.detection:Detection"),
    "countdown": Builtin("roll.rewards.countdown:Countdown", is_light=True),
    "trinity_reward": Builtin("roll.rewards.trinity:TrinityReward"),
    LLM_JUDGE: Builtin(
        "roll.rewards.judge.judge_judge:Judge", is_quick=False, package=("openai", "pip install openai")
    ),
    "code_sandbox": Builtin(
        "roll.rewards.code.reward:CodeSandbox",
        reward_types=("hard", "soft"),
        settings=("use_local", "code_url", "timeout_s"),
    ),
    "verl_function": Builtin("roll.rewards.verl_function:VerlFunction"),
    "none": Builtin("roll.rewards.no_reward:NoReward", is_light=True),
    "overlong": Builtin("roll.rewards.penalties:Overlong", is_light=True),
    "repetition": Builtin("roll.rewards.penalties:Repetition", is_light=True),
    "short_response": Builtin("roll.rewards.penalties:ShortResponse", is_light=True),
    "long_word": Builtin("roll.rewards.penalties:LongWord", is_light=True),
}
PATHS: Mapping[str, str] = {name: row.path for name, row in BUILTINS.items()}
