"""Bottleneck of a step, in one line: what takes the largest share of it, and how to make that smaller."""

from collections.abc import Mapping
from dataclasses import dataclass

from roll.utils.timing import phase_seconds

_CROWDED = 0.2  # below this bubble the devices are busy: only more of them, or less to compute, make a step shorter
_REWARDS_BIND = 0.8  # of the rollout, in which the processes of a reward were busy
_STEADY_STEPS = 3
_AHEAD = "rollouts that run further ahead (docs/rollouts.md)"  # there are several ways to that

_CAUSES: Mapping[str, tuple[str, ...]] = {
    "rollout": ("rollout",),
    "rewards": ("reward",),
    "training": ("score", "train_critic", "train_actor", "train"),
    "weights": ("weight_sync",),
    "validation": ("validate",),
    "checkpoint": ("checkpoint",),
}


@dataclass(frozen=True)
class Bottleneck:
    """`cause` took `share` of the step."""

    cause: str
    share: float
    text: str


def bottleneck_of(metrics: Mapping[str, float]) -> Bottleneck | None:
    """The bottleneck of a step, from its row of metrics; None if the row lacks the times of its phases or the devices'
    idle fraction."""
    phases = phase_seconds(metrics)
    total = sum(phases.values())
    bubble = metrics.get("goodput/bubble_fraction")
    if not total or bubble is None:
        return None
    shares = {cause: sum(phases.get(name, 0.0) for name in names) / total for cause, names in _CAUSES.items()}
    shares["driver"] = 1 - sum(shares.values())
    cause = max(shares, key=lambda name: shares[name])
    share = shares[cause]
    return Bottleneck(cause, share, _text(cause, share, bubble, phases, metrics))


def _text(cause: str, share: float, bubble: float, phases: Mapping[str, float], metrics: Mapping[str, float]) -> str:
    if cause in ("rollout", "training") and bubble < _CROWDED:
        what = "sampling" if cause == "rollout" else "training"
        return (
            f"devices are busy {1 - bubble:.0%} of the time, mostly {what} ({share:.0%}): use more devices, or compute "
            "less"
        )
    match cause:
        case "rollout":
            return _rollout_text(share, metrics)
        case "rewards":
            return (
                f"all roles wait {share:.0%} of the time for rewards after the rollout: use more devices or processes "
                "for them"
            )
        case "training" if "rollout" not in phases:
            return f"training takes {share:.0%}, on devices that are busy {1 - bubble:.0%}: see the trace"
        case "training":
            return f"engines wait {share:.0%} of the time for training: use more training devices, or {_AHEAD}"
        case "weights":
            return (
                f"all roles wait {share:.0%} of the time for weights to reach the engines: model_update_frequency, "
                "weight_sync_route"
            )
        case "validation":
            return f"validation takes {share:.0%} of the time: use a larger eval_steps, or fewer rows"
        case "checkpoint":
            return f"checkpoints take {share:.0%} of the time: use a larger save_steps, or a faster disk"
    return (
        f"devices wait {share:.0%} of the time for the driver: use larger batches; the trace shows the reason "
        "(profiler_timeline)"
    )


def _rollout_text(share: float, metrics: Mapping[str, float]) -> str:
    busy = {name: value for name, value in metrics.items() if name.startswith("busy/rewards.")}
    slowest = max(busy, key=lambda name: busy[name], default="")
    if slowest and busy[slowest] >= _REWARDS_BIND * share:
        domain = slowest.removeprefix("busy/").removesuffix("_fraction")
        return f"all roles wait {share:.0%} of the time for rollouts, whose rewards are busy: raise {domain}.world_size"
    return f"the trainer waits {share:.0%} of the time: use more rollout devices, or {_AHEAD}"


class BottleneckNotice:
    """Says what bounds the steps once it has been the same for three of them, and again when it has become another for
    as many: a step that was slow for once is no news."""

    def __init__(self) -> None:
        self._reported = self._last = ""
        self._num_steps = 0

    def check(self, bound: Bottleneck) -> str | None:
        """The line to show, if any."""
        self._num_steps = self._num_steps + 1 if bound.cause == self._last else 1
        self._last = bound.cause
        if bound.cause == self._reported or self._num_steps < _STEADY_STEPS:
            return None
        self._reported = bound.cause
        return bound.text
