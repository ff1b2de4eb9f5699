"""Parts of the rules of health, and what they ask together."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from roll.run.health.history import History

REWARD, VALIDATION = "rollout/reward_mean", "val/reward_mean"
ENTROPY, CUT = "actor/entropy_mean", "rollout/truncated_fraction"
EQUAL = "rollout/group_equal_rewards_fraction"
UNEQUAL_PAY = "rollout/duplicate_reward_std_mean"
GAP = "train_infer/log_prob_diff_mean"


@dataclass(frozen=True)
class Cause:
    """A possible cause in words, and the key to change to `value`; no value: what it is to be depends on the task."""

    text: str
    key: str = ""
    value: str = ""

    def __str__(self) -> str:
        change = f"{self.key}={self.value}" if self.value else self.key
        return f"{self.text} ({change})" if change else self.text


@dataclass(frozen=True)
class Diagnosis:
    """Finding of a rule, with figures, and its possible causes."""

    says: str
    causes: tuple[Cause, ...]


@dataclass(frozen=True)
class Rule:
    """`label`: its name in two words, for a list of runs and docs/health.md. `find`: yields nothing, or one.
    `consequences`: labels that follow from it, and are not said beside it."""

    label: str
    find: Callable[[History], Iterator[Diagnosis]]
    consequences: frozenset[str] = frozenset()


# What rules ask together.


def standing(run: History) -> float | None:
    """Place of the mean reward of the last five steps: 0 at the lowest reward of the run, 1 at the highest."""
    return place_of(run, run.last(REWARD, 5))


def place_of(run: History, reward: float | None) -> float | None:
    """Place of a reward: 0 at the lowest reward of the run, 1 at the highest."""
    low, high = run.series.get("rollout/reward_min"), run.series.get("rollout/reward_max")
    if reward is None or not low or not high or max(high) == min(low):
        return None
    return (reward - min(low)) / (max(high) - min(low))


def is_solved(run: History) -> bool:
    """Return whether nearly all of the reward is earned."""
    place = standing(run)
    return place is not None and place > 0.85


def lower_rate(run: History, times: float = 10) -> Cause:
    """Cause: the learning rate of the first role that learns, divided by `times`."""
    role = learning_role(run)
    rate = run.at(role, "training_args", "learning_rate")
    value = f"{float(rate) / times:.0e}" if rate else ""
    at = f", which is {float(rate):g}" if rate else ""
    return Cause(f"a learning rate that is too high{at}", f"{role}.training_args.learning_rate", value)


def odd_settings(run: History) -> Iterator[Cause]:
    """Settings far from what is usual, which are suspected first."""
    role = learning_role(run)
    rate = run.at(role, "training_args", "learning_rate")
    if isinstance(rate, int | float):
        key, used = f"{role}.training_args.learning_rate", run.series.get("actor/learning_rate", [])
        if rate <= 1e-7:
            yield Cause(f"a learning rate that is too low, {rate:g}", key, "1e-06")
        elif len(used) >= 20 and max(used) < 0.2 * rate:
            warm = f"a warm-up that is too long: the learning rate came to {max(used):.1g} of {rate:g}"
            yield Cause(warm, f"{role}.training_args.warmup_steps", "5")
    heat = run.at("actor_infer", "generating_args", "temperature")
    if isinstance(heat, int | float) and heat < 0.5:
        yield Cause(f"a low temperature, {heat:g}", "actor_infer.generating_args.temperature", "1.0")
    if run.at("actor_infer", "generating_args", "top_k") == 1:
        yield Cause("greedy sampling, which gives a group one response", "actor_infer.generating_args.top_k", "0")
    groups = run.at("rollout_batch_size")
    if isinstance(groups, int) and groups < 4:
        yield Cause(f"few groups a step, {groups}: most teach nothing, the others noise", "rollout_batch_size", "32")
    for key, most in (("entropy_loss_coef", 0.05), ("kl_loss_coef", 1.0), ("init_kl_coef", 1.0)):
        value = run.at(key)
        if isinstance(value, int | float) and value > most:
            yield Cause(f"a term that outweighs the reward, {value:g}", key, "0.0" if key[0] == "e" else "0.01")


def bound_to_reference(run: History) -> Cause:
    if run.at("use_kl_loss"):
        return Cause("a weak bound to the first model", "kl_loss_coef")
    return Cause("no bound to the first model", "use_kl_loss", "true" if run.at("reference") else "")


def learning_role(run: History) -> str:
    """The first role that learns."""
    return next(
        (name for name in ("actor_train", "student", "sft_train", "reward_train") if run.at(name)), "actor_train"
    )


def length_limit(run: History) -> tuple[str, int | None]:
    for key in ("response_length", "sequence_length"):
        if isinstance(value := run.at(key), int):
            return key, value
    return "response_length", None
