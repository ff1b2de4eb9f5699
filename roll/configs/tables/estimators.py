"""The table of advantage estimators: what checks, plan, driver and workers have to know of each."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from roll.configs.problems import did_you_mean
from roll.utils.imports import resolve
from roll.utils.text import show

MeanScope = Literal["batch", "group", "running", "leave_one_out"]
StdScope = Literal["batch", "group", "running"]
RAFTKeep = Literal["best", "positive"]
OPMDBaseline = Literal["mean", "logavgexp"]
Whitening = bool | Literal["rows"]
"""True: every token counts once in the mean and the deviation; rows: every response does."""

DECLARED = "declared_estimator"
"""The attribute of a user's function that holds its row (`estimator` in roll/algorithms/advantage.py puts it there)."""


@dataclass(frozen=True)
class Estimator:
    """One value of `adv_estimator`.

    Every attempt is worth (reward - mean) / deviation, or what `function` makes of the rewards. With `per_turn` every
    turn of an episode has a value of its own, which `function` computes from what the episode earns from that turn on.
    """

    name: str
    mean: MeanScope | None = None
    """Set of samples over which the mean is taken, None: nothing is subtracted. `norm_mean_type` overrules it."""
    std: StdScope | None = None
    """The same of the deviation, which also divides what `function` gives. `norm_std_type` overrules it."""
    scopes: tuple[str, ...] = ("batch", "group", "running", "leave_one_out")
    """Values that the two keys may have beside `none`."""
    function: str | None = None
    """package.module:object, called with the Attempts of a step and its keys (`weights`) by name, or with the Turns."""
    per_turn: bool = False
    steps_only: bool = False
    """One row per turn: it compares what followed on single turns."""
    needs_groups: bool = False
    """Compares within groups whatever the norms: a group of one says nothing."""
    needs_greedy: bool = False
    """Compares with the greedy answer to the same prompt, which the rollout samples beside the group."""
    needs_parts: bool = False
    """Compares parts of a reward, which `gdpo_reward_keys` names, each by itself."""
    weighs_tokens: bool = False
    """Compares returns of tokens within groups, by log-probs at the temperature of the run and at half of it."""
    needs_critic: bool = False
    """Token advantages are GAE's, with the values of a critic; else the discounted sum of what follows."""
    whitens: Whitening = False
    """Token advantages are whitened over the batch by definition; `whiten_advantages` overrules how."""
    discount: str = "gamma"
    """The key with its discount, per token or per turn."""
    weights: tuple[str, ...] = ()
    """Further keys that belong to it."""

    @property
    def is_user_defined(self) -> bool:
        """True for a function of the user's."""
        return self.name not in ESTIMATORS

    @property
    def takes_norms(self) -> bool:
        """True if norm_mean_type and norm_std_type have a say."""
        return self.per_turn or self.function is None

    @property
    def takes_std(self) -> bool:
        """True if norm_std_type has."""
        return self.takes_norms or self.std is not None

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys of a YAML that it reads and that not every estimator does."""
        return (self.discount, *(("lambd",) if self.needs_critic else ()), *self.weights)


_ROWS = (
    Estimator("gae", needs_critic=True),
    Estimator("reinforce"),
    Estimator("reinforce_plus_plus", whitens=True),
    Estimator("reinforce_plus_plus_baseline", mean="group", whitens="rows"),
    Estimator("grpo", mean="group", std="group"),
    Estimator("rloo", mean="leave_one_out"),
    Estimator("remax", function="roll.algorithms.advantage:remax", needs_greedy=True),
    Estimator("opo", function="roll.algorithms.advantage:opo", needs_groups=True),
    Estimator("optimal_token_baseline", needs_groups=True, weighs_tokens=True),
    Estimator(
        "gdpo",
        function="roll.algorithms.advantage:gdpo",
        needs_groups=True,
        needs_parts=True,
        whitens="rows",
        weights=("gdpo_reward_keys", "gdpo_reward_weights"),
    ),
    Estimator("gpg", function="roll.algorithms.advantage:gpg", needs_groups=True),
    Estimator("grpo_passk", std="group", function="roll.algorithms.advantage:grpo_passk", needs_groups=True),
    Estimator(
        "asymre", function="roll.algorithms.advantage:asymre", needs_groups=True, weights=("asymre_baseline_shift",)
    ),
    Estimator("raft", function="roll.algorithms.advantage:raft", weights=("raft_keep",)),
    Estimator(
        "opmd",
        function="roll.algorithms.advantage:opmd",
        needs_groups=True,
        weights=("opmd_baseline", "opmd_baseline_tau"),
    ),
    Estimator(
        "gigpo",
        mean="group",
        std="group",
        function="roll.algorithms.episodes:gigpo",
        per_turn=True,
        steps_only=True,
        needs_groups=True,
        discount="step_reward_gamma",
        weights=("episode_reward_weight", "step_reward_weight"),
    ),
    Estimator(
        "step_reinforce",
        function="roll.algorithms.episodes:step_reinforce",
        per_turn=True,
        steps_only=True,
        discount="step_reward_gamma",
    ),
    Estimator(
        "agentic_reinforce",
        scopes=("batch", "group"),
        function="roll.algorithms.episodes:agentic_reinforce",
        per_turn=True,
    ),
)
ESTIMATORS: Mapping[str, Estimator] = {row.name: row for row in _ROWS}
"""Estimators by name, in the order in which messages list them."""


def estimator_of(name: str) -> Estimator:
    """The row of an adv_estimator: a name of the table, or package.module:function, which is imported. Raises
    ValueError that says what there is instead, or what keeps the function from being one."""
    if ":" in name:
        return _declared(name)
    if name not in ESTIMATORS:
        known = f"{', '.join(ESTIMATORS)}, nor a function of your own, package.module:function"
        raise ValueError(f"{show(name)} is not one of {known}.{did_you_mean(name, ESTIMATORS)}")
    return ESTIMATORS[name]


def _declared(path: str) -> Estimator:
    try:
        function = resolve(path)
    except ImportError as error:
        raise ValueError(str(error)) from error
    if not callable(function):
        raise ValueError(f"{path} is a {type(function).__name__}; name a function")
    row = getattr(function, DECLARED, None)
    if not isinstance(row, Estimator):
        raise ValueError(
            f"{path} does not declare what it is: put @estimator() from roll.algorithms.advantage above it "
            "(docs/adding_an_estimator.md)"
        )
    return replace(row, name=path, function=path)
