"""Settings of one domain of an RLVR run: how its answers are scored."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from roll.configs.base import Settings, setting
from roll.configs.sections.cluster import WorkerConfig
from roll.configs.tables.roles import LLM_JUDGE, REWARD_MODEL

# The rewards that come with roll: one row each, readable without importing any.

VerdictForm = Literal["yes_no", "score", "json", "boxed", "pattern"]
"""Place of the verdict in what a judge says."""
RewardType = Literal["hard", "soft", "loose", "strict"]
ALL_TYPES: tuple[RewardType, ...] = ("hard", "soft", "loose", "strict")


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
    "general_rule": Builtin("roll.rewards.choice:GeneralRule", reward_types=ALL_TYPES),
    "crossthinkqa": Builtin("roll.rewards.choice:CrossThinkQA", reward_types=ALL_TYPES),
    "ifeval": Builtin(
        "roll.rewards.ifeval.reward:IFEval",
        package=("py3langid", "pip install py3langid"),
        reward_types=("hard", "soft"),
    ),
    "detection": Builtin("roll.rewards.detection:Detection"),
    "countdown": Builtin("roll.rewards.countdown:Countdown", is_light=True),
    "reasoning_gym": Builtin(
        "roll.rewards.reasoning_gym:ReasoningGym",
        is_quick=False,
        package=("reasoning_gym", "pip install reasoning-gym==0.1.25"),
    ),
    "trinity_reward": Builtin("roll.rewards.trinity:TrinityReward"),
    LLM_JUDGE: Builtin("roll.rewards.judge.api:ApiJudge", is_quick=False, package=("openai", "pip install openai")),
    "code_sandbox": Builtin(
        "roll.rewards.code.reward:CodeSandbox",
        reward_types=("hard", "soft"),
        settings=("use_local", "code_url", "timeout_s"),
    ),
    "verl_function": Builtin("roll.rewards.verl_function:VerlFunction"),
    "none": Builtin("roll.rewards.texts:NoReward", is_light=True),
    "overlong": Builtin("roll.rewards.penalties:Overlong", is_light=True),
    "repetition": Builtin("roll.rewards.penalties:Repetition", is_light=True),
    "short_response": Builtin("roll.rewards.penalties:ShortResponse", is_light=True),
    "long_word": Builtin("roll.rewards.penalties:LongWord", is_light=True),
}
PATHS: Mapping[str, str] = {name: row.path for name, row in BUILTINS.items()}


ANSWER_TOKENS = 512  # of a judge on engines that is not told how long it may talk


class RewardFilterConfig(Settings):
    """`query_filter_config` of a domain."""

    type: Literal["no_filter", "mean_filter", "std_filter"] = setting(
        "no_filter",
        "Which groups of responses to train on: mean_filter keeps those whose mean reward lies between threshold_down "
        "and "
        "threshold_up, std_filter those whose deviation is above std_threshold.",
    )
    filter_args: dict[str, Any] = setting({}, "Thresholds of the filter.")


class DynamicTimeoutConfig(Settings):
    """`dynamic_timeout` of a domain: a time limit that follows how long scoring takes."""

    enable: bool = setting(
        False,
        "Limit the scoring of a response to `ratio` times the mean of those that were scored, in this run and domain "
        "so far; at least min_s, at most timeout_s, which also holds for the first few.",
    )
    ratio: float = setting(3.0, "Times the mean.", gt=1)
    min_s: float = setting(1.0, "Seconds that scoring may take however quick the others were.", gt=0)


class RewardPart(Settings):
    """One of `reward_manager_config` of a domain: a reward that is added."""

    reward: str = setting(
        ..., "As `reward` of a domain. Made for this: overlong, repetition, short_response, long_word."
    )
    reward_args: dict[str, Any] = setting({}, "Keyword arguments of it.")
    weight: float = setting(1.0, "What its score is multiplied with.")
    name: str | None = setting(
        None,
        "What its metrics are called, such as rollout/reward_<name>_mean. Default: that of the reward.",
        min_length=1,
    )


class RewardModelArgs(Settings):
    """`reward_args` of a domain whose reward is reward_model: how its answers are read, and which number counts."""

    label: int | None = setting(
        None, "Which of the head's numbers is the reward, from 0. Needed where it has several.", ge=0
    )
    max_length: int | None = setting(
        None,
        "Most tokens of prompt and response that the model is shown; the rest is cut off. Default: all; responses that "
        "are then longer than the model's positions fail.",
        ge=1,
    )
    truncation_side: Literal["left", "right"] = setting(
        "left", "Where max_length cuts. left keeps the end, where the number is read."
    )
    retemplate: bool | None = setting(
        None,
        "true: show messages in the model's own tokens and chat template; false: the tokens that were sampled. "
        "Default: true where tokenizer or template are not the policy's.",
    )


class RewardConfig(WorkerConfig):
    """One domain under `rewards`: how its answers are scored. Runs on CPU in `world_size` processes, but for
    reward_model."""

    reward: str | None = setting(
        None,
        "The reward: a built-in name (docs/rewards.md) or `package.module:object`, a function or a class, async or "
        "not. Default: what worker_cls names.",
    )
    reward_args: dict[str, Any] = setting(
        {}, "Keyword arguments of the reward, such as `pattern` of regex and exact_match."
    )
    timeout_s: float = setting(30.0, "Seconds that scoring one response may take; then it has failed.", gt=0)
    reward_retries: int = setting(
        0,
        "How often scoring is repeated after a failure that may pass: the process died, the time limit was reached, a "
        "connection failed, or a server replied 408, 429 or 5xx. After any other exception the response fails at once.",
        ge=0,
        le=100,
    )
    dynamic_timeout: DynamicTimeoutConfig = setting(
        {}, "A time limit by the mean time of the responses that were scored."
    )
    format_pattern: str | None = setting(
        None, "Regular expression the whole response must match to earn its reward; otherwise the reward is 0."
    )
    reward_type: RewardType | None = setting(
        None,
        "How strict a reward is that knows several ways (docs/rewards.md): soft pays parts, hard is right or wrong. "
        "Default: the reward's own. A reward of your own gets it as an argument.",
    )
    response_length_penalty_coef: float = setting(
        0.0, "Weight of the penalty on short responses (short_response) that is added to the reward."
    )
    reward_manager_config: tuple[RewardPart, ...] = setting(
        (), "Rewards and penalties that are added to `reward`, or make up the reward without one."
    )
    use_local: bool = setting(
        True, "code_sandbox: run programs on this machine, in a sandbox (docs/code_sandbox.md); false: at code_url."
    )
    code_url: str | None = setting(
        None, "code_sandbox: address of an HTTP service that runs code, for use_local: false."
    )
    judge_model_type: Literal["api", "inference", "cluster"] | None = setting(
        None,
        "Of llm_judge, as all judge_ keys: who judges. api: a model behind an OpenAI-compatible address. inference: "
        "engines of the domain's own (model_args, strategy_args, device_mapping). cluster: those of the section "
        "reward_model, which domains share.",
    )
    judge_prompt: str | None = setting(
        None,
        "What the judge is asked: quality (a score; the default), correctness (is it the reference? yes or no), a text "
        "of your own with {response} and perhaps {question}, {reference} and columns of the data, or a file with one.",
    )
    judge_model_name: str | None = setting(None, "With api: the model's name there.")
    judge_api_url: str | None = setting(None, "With api: the address, such as http://host:8000/v1.")
    judge_sees_pictures: bool | None = setting(
        None,
        "The judge is shown the pictures of a row before its question. Default: with inference and cluster where its "
        "model sees them, with api false.",
    )
    judge_api_key: str | None = setting(
        None, "With api: the key. Default: the environment variable JUDGE_API_KEY, or none."
    )
    judge_verdict: VerdictForm | None = setting(
        None,
        "Where the verdict is in what the judge says: yes_no (words), score (a number), json (an object with score or "
        "verdict), boxed, or pattern. Default: what the prompt by name asks for; yes_no for a prompt of your own.",
    )
    judge_verdict_pattern: str | None = setting(
        None, "Regular expression of the verdict: its last match counts, and of it the group, if it has one."
    )
    judge_scores: dict[str, float] = setting({}, "What a verdict in words is worth. Default: yes 1, no 0.")
    judge_score_range: tuple[float, float] = setting(
        (0.0, 10.0), "Lowest and highest score that the judge may give: they become 0 and 1."
    )
    judge_max_retries: int = setting(
        3,
        "How often the request about a response may be sent again: it failed, or its reply holds no verdict.",
        ge=0,
        le=100,
    )
    judge_max_requests: int = setting(
        64, "With api: most requests in flight, in all processes of the domain together.", ge=1
    )
    judge_request_timeout_s: float | None = setting(
        None, "With api: seconds until a request without a reply is sent again. Default: timeout_s ends it.", gt=0
    )

    query_filter_config: RewardFilterConfig = setting({}, "Groups of responses to leave out.")

    @property
    def is_model(self) -> bool:
        return self.reward == REWARD_MODEL

    @property
    def has_reward_model(self) -> bool:
        """True if that is its own: else it is the one of the section `reward`."""
        return self.is_model and (self.strategy_args is not None or self.device_mapping is not None)

    @property
    def is_judge(self) -> bool:
        return LLM_JUDGE in (self.reward, *(part.reward for part in self.reward_manager_config))

    @property
    def has_own_judge(self) -> bool:
        """True if that is on engines of its own."""
        return self.is_judge and self.judge_model_type == "inference"

    @property
    def is_judged_by_engines(self) -> bool:
        """True if a judge on engines of the run scores its answers."""
        return self.is_judge and self.judge_model_type in ("inference", "cluster")
