"""Trinity-RFT's steps: which GPUs train, what a step holds, how far rollouts run ahead, how long a run is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from math import floor, prod
from typing import Any

from roll.importers.rows import ChangesRun, CombinedKeys, LeftOpen, NotHere, SourceLookup, devices
from roll.importers.trinity.distillation import auxiliary_gpus, distils
from roll.importers.trinity.modes import COLOCATED, sampled
from roll.importers.verl import batches as verl_counts
from roll.importers.verl.batches import gpus
from roll.importers.verl.common import ACTOR, CRITIC, ROLLOUT, has_critic
from roll.importers.verl.correction import unweighted

_ENGINES = "trinity.explorer.rollout_model.engine_num"
_TRAIN_BATCH = "trinity.buffer.train_batch_size"
_OVER = "trinity.explorer.over_rollout"
_STYLE = "trinity.synchronizer.sync_style"
SAVES = "trainer.save_freq"
LENGTHS_OF_RUN = ("trainer.total_steps", "buffer.total_steps")
_NEITHER, _WINDOW = "fully_async", "trinity.explorer.max_inflight_batches"
_EXPLORER = ("dynamic_by_explorer", "explorer_driven")
_TRAINER = ("dynamic_by_trainer", "trainer_driven")
_MOST_GPUS = 1_000_000


# --- GPUs


def _engine_gpus(source: SourceLookup) -> int:
    return _engines(source) * source.size(f"{ROLLOUT}.tensor_model_parallel_size")


def _engines(source: SourceLookup) -> int:
    """Count the engines: one that is parallel in another way than by tensors becomes several here."""
    ways = (source.size(f"{ROLLOUT}.{way}_size", 1) for way in ("data_parallel", "pipeline_model_parallel"))
    return source.size(_ENGINES) * prod(ways)


def _num_remaining(look: SourceLookup) -> int:
    """Engines and auxiliary models have GPUs of their own, the trainer has the others; where there are no others, all
    share, as with mode: colocate. A run that only trains has no engines."""
    total = gpus(look)
    if look("trinity.mode") in ("train", COLOCATED):
        return total
    left = total - _engine_gpus(look) - auxiliary_gpus(look)
    return left if left > 0 else total


def _divides(source: SourceLookup, train: int) -> bool:
    """Whether so many GPUs share an update evenly, as both systems want."""
    sections = [ACTOR] if has_critic(source) else [ACTOR, CRITIC]
    sizes = [verl_counts.together(source, section)[0] for section in sections]
    return all(train % size == 0 and Step(source).update % (train // size) == 0 for size in sizes)


def trainer_gpus(source: SourceLookup) -> int:
    """The most of those that are left which share an update evenly."""
    free = _num_remaining(source)
    if free > _MOST_GPUS:
        raise NotHere(f"{free} GPUs are more than there are; cluster has node_num and gpu_per_node")
    return next((train for train in range(free, 0, -1) if _divides(source, train)), free)


def _placement(source: SourceLookup) -> CombinedKeys:
    made, total, free = verl_counts.placement(source), gpus(source), _num_remaining(source)
    train = trainer_gpus(source)
    settings = {
        key: devices(0, train) if key.endswith(".device_mapping") else value for key, value in made.settings.items()
    }
    near = ""
    if train < free:
        near = f" {Step(source).update} samples of an update do not split over the {free} GPUs that are left, which "
        near += f"Trinity-RFT refuses: {free - train} of them stay free. Another engine_num leaves others."
    if free == total:
        settings["actor_infer.device_mapping"] = devices(0, total)
        if source("trinity.mode") == "train":
            return CombinedKeys(settings, f"mode: train has no engines: {train} GPUs train.", near.strip())
        if source("trinity.mode") == COLOCATED:
            return CombinedKeys(
                settings, f"mode: colocate: trainer and engines share all {total} GPUs, in turn.", near.strip()
            )
        shared = "No GPU is left for a trainer of its own: trainer and engines share all, in turn."
        return replace(made, settings=settings, difference=f"{shared}{near}")
    first, num = free, _engine_gpus(source)
    settings["actor_infer.device_mapping"] = devices(first, num)
    size = source.size(f"{ROLLOUT}.tensor_model_parallel_size")
    text = f"{_engines(source)} engines x {size} GPUs = {num}: devices {first} to {first + num - 1}; "
    text += f"the trainer has the first {train}"
    if last := total - first - num:
        text += f", the teacher the last {last}" if distils(source) else f"; the last {last} are those of other models"
    return CombinedKeys(settings, f"{text}.", near.strip())


# --- what a step and an update hold


class Step:
    """`prompts` in a step, `update` samples in an update, and how they differ from what is asked."""

    def __init__(self, source: SourceLookup):
        started, self.group = source.size("data.train_batch_size"), source.size(f"{ROLLOUT}.n")
        share = over_share(source)
        self.prompts = max(1, floor(round(started * (1 - share), 6)))
        self.started = started
        batch = sampled(source, source.number(_TRAIN_BATCH, 0)) or started * self.group
        self.near = ""
        if share:
            batch = min(batch, self.prompts * self.group)
        if batch > self.prompts * self.group:
            self.prompts = -(-batch // self.group)
            self.near = f"train_batch_size {batch} is more than the {started} x {self.group} samples of an exploring "
            self.near += f"step: a step here takes {self.prompts} prompts. Turns of an episode are samples there."
        self.update = min(batch, self.prompts * self.group)


def over_share(source: SourceLookup) -> float:
    """The share of its tasks for which an exploring step does not wait."""
    share = source.amount(f"{_OVER}.ratio", 0.0)
    if not 0 <= share < 1:
        raise NotHere(f"explorer.over_rollout.ratio: {share:g} must be at least 0 and below 1")
    return share


def _batches(role: str) -> Callable[[SourceLookup], CombinedKeys]:
    def combine(source: SourceLookup) -> CombinedKeys:
        try:
            step, train = Step(source), trainer_gpus(source)
            return verl_counts.laid_out(source, role, (step.prompts, step.group, step.update), train, step.near)
        except LeftOpen:
            raise
        except NotHere as reason:  # without its batches it would be the run of the defaults here
            raise ChangesRun(str(reason)) from None

    return combine


# --- how far rollouts run ahead


def _ahead(source: SourceLookup) -> CombinedKeys:
    interval, offset = (source.number(f"trinity.synchronizer.sync_{name}") for name in ("interval", "offset"))
    style, share = str(source(_STYLE) or "fixed"), over_share(source)
    if interval < 1 or offset < 0:
        raise NotHere(f"sync_interval {interval} must be at least 1, and sync_offset {offset} at least 0")
    changed = dict[str, str]()
    if style not in ("fixed", *_EXPLORER, *_TRAINER, _NEITHER):
        known = ", ".join(("fixed", _EXPLORER[0], _TRAINER[0], _NEITHER))
        changed[_STYLE] = f"there is no sync_style {style} here, and fixed stands in; there are {known}"
        style = "fixed"
    settings: dict[str, Any] = {"actor_train.model_update_frequency": interval}
    nears: dict[str, str] = {}
    window = source.size(_WINDOW)
    ahead = float(offset) if style == "fixed" else float(window if style == _NEITHER else max(offset, 1))
    idle = {} if style == _NEITHER else {_WINDOW: f"of sync_style: {_NEITHER}"}
    if style != "fixed":
        side = "explorer" if style in _EXPLORER else "trainer"
        waits = " Neither side waits for the other." if style == _NEITHER else ""
        nears[_STYLE] = (
            f"There weights go whenever the {side} has done {interval} steps, and nothing bounds the age of a sample."
            f"{waits} "
            f"Here both sides count the same steps, and none is more than {interval - 1 + int(ahead)} steps old."
        )
    if share:
        step = Step(source)
        settings |= {"unfinished_groups": "drop", "unfinished_grace_s": source.amount(f"{_OVER}.wait_after_min", 30.0)}
        ahead = step.started / step.prompts - 1
        left_out = f"There a step of {step.started} tasks trains on those that are done; here on {step.prompts}."
        nears |= {f"{_OVER}.ratio": left_out, f"{_OVER}.wait_after_min": ""}
        if offset or style != "fixed":
            none = "With unfinished_groups: drop no step runs ahead of its training."
            nears |= dict.fromkeys((_STYLE, "trinity.synchronizer.sync_offset"), none)
        text = f"{step.started} prompts are started for a step of {step.prompts}; weights go every {interval} steps."
    else:
        text = f"weights go to the engines every {interval} steps, rollouts run {ahead:g} steps ahead."
    settings |= {"async_generation_ratio": ahead, **(unweighted(source) if ahead else {})}
    return CombinedKeys(settings, text, differences=nears, changes=changed, idle=idle)


# --- how long a run is


def _in_steps(source: SourceLookup, updates: int) -> tuple[int, str]:
    """Their steps are updates: a step here makes as many as its samples have train batches."""
    step = Step(source)
    samples = step.prompts * step.group
    steps = max(1, -(-updates * step.update // samples))
    return steps, f"{updates} x {step.update} of {samples} samples = {steps}."


def lengths_in_yaml(look: SourceLookup) -> Iterator[tuple[str, int]]:
    for key in LENGTHS_OF_RUN:
        if look(f"trinity.{key}") is not None:
            yield key, look.size(f"trinity.{key}")


def shortest(source: SourceLookup) -> tuple[int, dict[str, str]]:
    """The run ends with the first of its two lengths; the reason for the other."""
    lengths = dict(lengths_in_yaml(source))
    least = min(lengths, key=lambda key: lengths[key])
    others = [key for key in lengths if lengths[key] != lengths[least]]
    return lengths[least], {f"trinity.{key}": f"{least}: {lengths[least]} ends the run before." for key in others}


def _steps(source: SourceLookup) -> CombinedKeys:
    if not dict(lengths_in_yaml(source)):
        if source("trinity.mode") == "train":
            source.unresolved.add("buffer.total_steps")
        return CombinedKeys({}, "epochs count")
    updates, nears = shortest(source)
    steps, text = _in_steps(source, updates)
    return CombinedKeys({"max_steps": steps}, f"max_steps: {text}", differences=nears)


def _saves(source: SourceLookup) -> CombinedKeys:
    updates = source.number(SAVES)
    if updates <= 0:
        return CombinedKeys({"save_steps": -1}, "save_steps: -1.")
    steps, text = _in_steps(source, updates)
    return CombinedKeys({"save_steps": steps}, f"save_steps: {text}")


def counts_epochs(source: SourceLookup) -> str:
    if lengths := dict(lengths_in_yaml(source)):
        return f"{next(iter(lengths))} counts"
    if source("trinity.mode") == "train":
        raise LeftOpen("buffer.total_steps", "the number of steps, which the groups of a buffer do not say,")
    return ""


STEP_COMBINED_KEYS: Mapping[str, Callable[[SourceLookup], CombinedKeys]] = {
    # a step of Trinity-RFT's trainer is one update
    **{f"{role} rise": verl_counts.warmup(role, lambda source: 1) for role in ("actor_train", "critic")},
    "placement": _placement,
    "actor batches": _batches("actor_train"),
    "critic batches": _batches("critic"),
    "steps": _steps,
    "saves": _saves,
    "ahead": _ahead,
}
