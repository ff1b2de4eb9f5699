"""The account of a run: what its workers did in each step, and the picture of it all."""

import json
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from roll.configs.sections.run import RunConfig
from roll.distributed.executor.clusters import RunClusters
from roll.distributed.executor.usage import RoleUsage, WorkerUsage
from roll.run.bottleneck import BottleneckNotice, bottleneck_of
from roll.run.saving.model_files import read_model_config
from roll.utils.imports import resolve
from roll.utils.spans import MOST_EVENTS, Interval, Spans, wall_offset, write_chrome_trace
from roll.utils.worker_usage import IDLE, TraceOptions

# What the devices of a run did during a step, as numbers (docs/metrics.md).

_COMPUTES = ("train", "score", "score_rows", "compute_teacher_targets")  # calls of a worker with a model
_SAMPLES = ("sampling",)  # states of an engine


class Flops(Protocol):
    """Floating-point operations of a model's passes over tokens, and over pairs of a token with one before it."""

    def forward(self, tokens: float, pairs: float) -> float: ...
    def training(self, tokens: float, pairs: float) -> float: ...


@dataclass(frozen=True)
class Sizes:
    """Sizes for the arithmetic: of models, by role, if they are known; peak FLOP/s of a device, None if unknown;
    the role whose training is the run's purpose, and the one that samples for it."""

    models: Mapping[str, Flops]
    peak: float | None = None
    learner: str = "actor_train"
    sampler: str = "actor_infer"


class UsefulTokens:
    """How much of what was sampled is trained on, since the run was started or resumed: where rollouts run ahead, that
    of one step is trained on in another."""

    def __init__(self) -> None:
        self._trained = self._sampled = 0.0

    def add_restored(self, num_tokens: int) -> None:
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
            if work.sharing is not None:
                metrics["goodput/prefix_sharing_factor"] = work.sharing
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
    peaks = {"host": max(worker.usage.host_bytes for worker in role.workers)}
    if on_device := [w.usage.device_bytes for w in role.workers if w.usage.device_bytes is not None]:
        peaks["device"] = max(on_device)
    return {f"memory/{role.role}_{where}_bytes": float(peak) for where, peak in peaks.items() if peak}


def _mfu(usages: Sequence[RoleUsage], sizes: Sizes, wall_s: float, num_devices: int) -> dict[str, float]:
    metrics: dict[str, float] = {}
    training = 0.0
    for role in usages:
        model = sizes.models.get(role.role)
        if sizes.peak is None or model is None:
            continue
        busy = sum(len(w.devices) * w.usage.wall_s * w.usage.fraction(*_busy_states(role, w)) for w in role.workers)
        operations = {method: model.training if method == "train" else model.forward for method in role.work}
        flops = {m: operations[m](work.computed_tokens, work.computed_pairs) for m, work in role.work.items()}
        if role.use == "generate":
            tokens = sum(_count(role, name) for name in ("prompt_tokens", "sampled_tokens", "other_tokens"))
            flops["sample"] = model.forward(tokens, _count(role, "pairs"))
        training += flops.get("train", 0.0)
        if busy and sum(flops.values()):
            metrics[f"mfu/{role.role}_fraction"] = sum(flops.values()) / (busy * sizes.peak)
    if sizes.peak is not None and training and num_devices:
        metrics["goodput/mfu_fraction"] = training / (num_devices * wall_s * sizes.peak)
    return metrics


logger = logging.getLogger(__name__)

TRACE_FILE, MEMORY_FILE = "trace.json", "memory.jsonl"
_SAME_CLOCK_S = 0.05


class Accounting:
    """Asks the workers once per step, when it has learnt: they answer while its weights are published. A window goes
    from one question to the next, so what follows the training of a step belongs to the window of the next one."""

    def __init__(self, config: RunConfig):
        self._config = config
        self._directory = Path(config.profiler_output_dir)
        self.spans = Spans(MOST_EVENTS if config.profiler_timeline else 0)
        snapshots = str(self._directory.absolute()) if config.profiler_memory else ""
        self._trace_options = TraceOptions(config.profiler_timeline, snapshots)
        self._clusters: RunClusters | None = None
        self._sizes = Sizes({})
        self._useful = UsefulTokens()
        self._since = time.perf_counter()
        self._wall_s = 0.0
        self._answers: Callable[[], Sequence[RoleUsage]] | None = None  # to what was asked last
        self._notice = BottleneckNotice()

    def phase(self, path: str, started: float, ended: float) -> None:
        if self.spans.is_on:
            self.spans.add(Interval("driver", "steps", path.rpartition("/")[2], started, ended))

    def watch(self, clusters: RunClusters) -> None:
        self._clusters = clusters
        if self._trace_options.snapshots:
            self._directory.mkdir(parents=True, exist_ok=True)
        learner = next(iter(self._config.learning_roles), "")
        self._sizes = Sizes(_models(self._config), learner=learner)

    def add_restored_tokens(self, num_tokens: int) -> None:
        """Sampled by the run that is resumed, in groups that no step has trained on."""
        self._useful.add_restored(num_tokens)

    def start(self) -> None:
        """The first window begins here; of what was before, only the tokens count that groups ahead sampled."""
        self.request_usage()
        self._take()

    def request_usage(self) -> None:
        now = time.perf_counter()
        self._wall_s, self._since = now - self._since, now
        self._answers = (lambda: ()) if self._clusters is None else self._clusters.ask_usage(self._trace_options)

    def end(self) -> None:
        """The steps are over: what came after the last question is in the timeline, too."""
        if self.spans.is_on:
            self.start()

    def metrics(self, step: int) -> dict[str, float]:
        """Metrics of the last window. Ends the window if `request_usage` did not."""
        if self._clusters is None:
            return {}
        if self._answers is None:
            self.request_usage()
        usages = self._take()
        if self._trace_options.snapshots:
            self._write_memory(step, usages)
        peak = _peak(self._config, usages)
        sizes = Sizes(self._sizes.models, peak, self._sizes.learner)
        return goodput_metrics(usages, sizes, self._wall_s) | self._useful.metrics()

    def observe(self, step: int, metrics: Mapping[str, float]) -> None:
        """Says what bounds the steps where that is news."""
        bound = bottleneck_of(metrics)
        if bound is not None and (line := self._notice.check(bound)) is not None:
            logger.info("step %d: %s", step, line)

    def close(self) -> None:
        if not self.spans.is_on:
            return
        path = self._directory / TRACE_FILE
        try:
            write_chrome_trace(path, self.spans.take())
        except OSError as error:
            logger.error("profiler_output_dir: %s cannot be written: %s", path, error)
        else:
            logger.info("the timeline is in %s; ui.perfetto.dev shows it", path)

    def _take(self) -> Sequence[RoleUsage]:
        usages = () if self._answers is None else self._answers()
        self._answers = None
        self._useful.add(usages, self._sizes)
        for usage in (worker.usage for role in usages for worker in role.workers):
            offset = usage.wall_offset - wall_offset()
            offset = offset if abs(offset) > _SAME_CLOCK_S else 0.0  # processes of one machine share a clock
            self.spans.add(*(event.shifted(offset) for event in usage.events))
        return usages

    def _write_memory(self, step: int, usages: Sequence[RoleUsage]) -> None:
        with (self._directory / MEMORY_FILE).open("a", encoding="utf-8") as file:
            for role in usages:
                for worker in (each for each in role.workers if each.usage.host_bytes):
                    row = {"step": step, "role": role.role, "rank": worker.rank, "host_bytes": worker.usage.host_bytes}
                    file.write(json.dumps(row | {"device_bytes": worker.usage.device_bytes}) + "\n")


def _models(config: RunConfig) -> dict[str, Flops]:
    flops_of: Any = resolve("roll.configs.memory.flops:model_flops")
    models: dict[str, Flops] = {}
    for name, worker in config.model_roles.items():
        model, _ = read_model_config(worker.model_args)
        if model is not None and (flops := flops_of(model, config.roles[name].head or "lm")) is not None:
            models[name] = flops
    return models


def _peak(config: RunConfig, usages: Sequence[RoleUsage]) -> float | None:
    """Peak FLOPs per second: from the YAML, or from the common name of all GPUs; None if unknown."""
    if config.gpu_peak_tflops is not None:
        return config.gpu_peak_tflops * 1e12
    names = {worker.usage.device_name for role in usages for worker in role.workers} - {""}
    peak_of: Any = resolve("roll.configs.memory.flops:peak_flops")
    return peak_of(names.pop()) if len(names) == 1 else None
