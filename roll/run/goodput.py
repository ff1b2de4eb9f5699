"""What the devices of a run did during a step, as numbers (docs/metrics.md)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from roll.configs.memory.flops import TRAINING_PASSES, forward_flops
from roll.configs.memory.model_shape import ModelShape
from roll.distributed.executor.usage import RoleUsage, WorkerUsage
from roll.utils.meter import IDLE

_COMPUTES = ("train", "score", "score_rows", "teach")  # calls of a worker with a model
_SAMPLES = ("sampling",)  # states of an engine


@dataclass(frozen=True)
class Sizes:
    """What the arithmetic needs: shapes of models, by role, where they are known; peak FLOP/s of a device, None where
    nobody knows; the role whose training is the run's purpose, and the one that samples for it."""

    shapes: Mapping[str, ModelShape]
    peak: float | None = None
    learner: str = "actor_train"
    sampler: str = "actor_infer"


class UsefulTokens:
    """How much of what was sampled is trained on, since the run was started or resumed: where rollouts run ahead, that
    of one step is trained on in another."""

    def __init__(self) -> None:
        self._trained = self._sampled = 0.0

    def brought(self, num_tokens: int) -> None:
        """Counts the sampled tokens of finished groups that a checkpoint restored."""
        self._sampled += num_tokens

    def add(self, usages: Sequence[RoleUsage], sizes: Sizes) -> None:
        for role in usages:
            if role.role == sizes.learner and (work := role.work.get("train")) is not None:
                self._trained += work.learnt
            if role.role == sizes.sampler:
                self._sampled += _count(role, "sampled_tokens")

    def metrics(self) -> dict[str, float]:
        return {"goodput/useful_fraction": self._trained / self._sampled} if self._sampled else {}


def goodput_metrics(usages: Sequence[RoleUsage], sizes: Sizes, wall_s: float) -> dict[str, float]:
    """Metrics of the `wall_s` seconds that these usages cover."""
    metrics: dict[str, float] = {}
    loads: defaultdict[int, float] = defaultdict(float)
    trained = 0.0
    for role in usages:
        if not role.workers:
            continue
        busy = [worker.usage.fraction(*_busy_states(role, worker)) for worker in role.workers]
        for worker, fraction in zip(role.workers, busy, strict=True):
            for device in worker.devices:
                loads[device] += fraction
        metrics[f"busy/{role.role}_fraction"] = sum(busy) / len(busy)
        metrics |= _throughput(role)
        if role.role == sizes.learner and (work := role.work.get("train")) is not None:
            trained = float(work.learnt)
            metrics["throughput/samples_per_s"] = work.rows / wall_s
        if role.role == sizes.sampler:
            metrics["rollout/recomputed_tokens"] = _count(role, "recomputed_tokens")
            held = [worker.usage.seconds.get("held", 0.0) for worker in role.workers]
            metrics["sync/held_s"] = sum(held) / len(held)
            if any(away := [worker.usage.seconds.get("away", 0.0) for worker in role.workers]):
                metrics["sync/away_s"] = sum(away) / len(away)
                metrics["rollout/moved_answers"] = _count(role, "moved_answers")
        metrics |= _memory(role)
    if loads:
        metrics["goodput/trained_tokens_per_s"] = trained / wall_s
        metrics["goodput/trained_tokens_per_device_s"] = trained / wall_s / len(loads)
        metrics["goodput/bubble_fraction"] = 1 - sum(min(1.0, load) for load in loads.values()) / len(loads)
    return metrics | _mfu(usages, sizes, wall_s, len(loads))


def _busy_states(role: RoleUsage, worker: WorkerUsage) -> tuple[str, ...]:
    if role.use == "generate":
        return _SAMPLES
    return tuple(set(worker.usage.seconds) - {IDLE}) if role.use == "cpu" else _COMPUTES


def _count(role: RoleUsage, name: str) -> float:
    return sum(worker.usage.counts.get(name, 0.0) for worker in role.workers)


def _throughput(role: RoleUsage) -> dict[str, float]:
    """Tokens by the mean time in which the role's workers worked on them."""
    tokens = {method: float(work.tokens) for method, work in role.work.items()}
    states = {method: method for method in tokens}
    if role.use == "generate":
        tokens["sample"] = _count(role, "sampled_tokens") + _count(role, "other_tokens")
        states["sample"] = "sampling"
    metrics: dict[str, float] = {}
    for name, count in tokens.items():
        seconds = sum(worker.usage.seconds.get(states[name], 0.0) for worker in role.workers) / len(role.workers)
        if count and seconds:
            metrics[f"throughput/{role.role}/{name}_tokens_per_s"] = count / seconds
    return metrics


def _memory(role: RoleUsage) -> dict[str, float]:
    found = {"host": max(worker.usage.host_bytes for worker in role.workers)}
    if on_device := [w.usage.device_bytes for w in role.workers if w.usage.device_bytes is not None]:
        found["device"] = max(on_device)
    return {f"memory/{role.role}_{where}_bytes": float(peak) for where, peak in found.items() if peak}


def _mfu(usages: Sequence[RoleUsage], sizes: Sizes, wall_s: float, num_devices: int) -> dict[str, float]:
    metrics: dict[str, float] = {}
    training = 0.0
    for role in usages:
        shape = sizes.shapes.get(role.role)
        if sizes.peak is None or shape is None:
            continue
        busy = sum(len(w.devices) * w.usage.wall_s * w.usage.fraction(*_busy_states(role, w)) for w in role.workers)
        passes = {method: TRAINING_PASSES if method == "train" else 1 for method in role.work}
        flops = {m: passes[m] * forward_flops(shape, work.tokens, work.pairs) for m, work in role.work.items()}
        if role.use == "generate":
            tokens = sum(_count(role, name) for name in ("prompt_tokens", "sampled_tokens", "other_tokens"))
            flops["sample"] = forward_flops(shape, tokens, _count(role, "pairs"))
        training += flops.get("train", 0.0)
        if busy and sum(flops.values()):
            metrics[f"mfu/{role.role}_fraction"] = sum(flops.values()) / (busy * sizes.peak)
    if sizes.peak is not None and training and num_devices:
        metrics["goodput/mfu_fraction"] = training / (num_devices * wall_s * sizes.peak)
    return metrics
