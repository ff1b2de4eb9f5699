"""The forecast of a run in words, and its scorecard: what was forecast and measured, step by phase."""

from __future__ import annotations

import json
import logging
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from roll.configs.plan.run_plan import RunPlan
from roll.configs.sections.run import RunConfig
from roll.errors import describe
from roll.utils.files import write_whole
from roll.utils.imports import resolve
from roll.utils.text import counted
from roll.utils.timing import phase_seconds

logger = logging.getLogger(__name__)

FILE, HISTORY = "forecast.json", "~/.cache/roll/simulate/forecasts.jsonl"
TITLES = {"score": "log-probs", "train_actor": "training", "train_critic": "critic", "weight_sync": "weights"}
_HIDDEN = ("other",)
_HOUR, _WEEK = 3600.0, 7 * 86400.0
_WARM_UP, _MOST = 2, 50  # steps that are not counted where there are more, and those that are
_SLOW = 0.1  # of a step: a phase below it is never the reason


@dataclass(frozen=True)
class Forecast:
    """`phases`: seconds of a step by the phases of `time/...`. `error`: the usual largest difference, as a share of the
    step. `num_gpus`: 0 on CPUs. `hour_cost`: of a GPU; None: not known. `kind`: of the runs whose history tells of this
    one."""

    machine: str
    phases: Mapping[str, float]
    error: float
    steps: int
    validate_s: float
    checkpoint_s: float
    beside_s: float  # of validations, checkpoints and the start, in the whole run
    num_gpus: int
    source: str
    hour_cost: float | None = None
    hint: str = ""
    kind: str = ""

    @property
    def step_s(self) -> float:
        return sum(self.phases.values())

    @property
    def run_s(self) -> float:
        return self.steps * self.step_s + self.beside_s

    @property
    def line(self) -> str:
        """Example: "a step ~41 s +-30 %: rollout 24 s, training 14 s, weights 1 s; 200 steps ~2.3 h, 18 GPU-hours"."""
        named = ((TITLES.get(name, name), seconds) for name, seconds in self.phases.items() if name not in _HIDDEN)
        parts = ", ".join(f"{name} {about(seconds)}" for name, seconds in named if seconds >= 0.01 * self.step_s)
        gpus = f", {plain(self.gpu_hours)} GPU-hours{self._each}" if self.num_gpus else f" on {self.machine}"
        run = f"; {counted(self.steps, 'step')} ~{about(self.run_s)}" if self.steps else ""
        return f"a step ~{with_bar(self.step_s, self.error)}: {parts}{run}{gpus}"

    @property
    def gpu_hours(self) -> float:
        """Hours of the run; of a step, where steps are not known: epochs are counted when the rows are read."""
        return self.num_gpus * (self.run_s if self.steps else self.step_s) / _HOUR

    @property
    def _each(self) -> str:
        return "" if self.steps else " a step"

    def lines(self) -> Iterator[str]:
        yield f"Time     {self.line}"
        yield f"         from: {self.source} (docs/forecast.md)"
        if self.hint:
            yield f"         {self.hint}"
        if self.hour_cost is not None and self.num_gpus:
            cost = plain(self.gpu_hours * self.hour_cost)
            yield f"Cost     ~{cost}{self._each} (gpu_hour_cost: {self.hour_cost:g})"

    def warnings(self) -> Iterator[str]:
        if self.step_s > _HOUR:
            yield f"A step takes about {about(self.step_s)} on {self.machine}. `roll fit` searches a faster layout."
        if self.run_s > _WEEK:
            yield f"The run takes about {about(self.run_s)} on {self.machine}. Fewer max_steps, or more devices?"


def plain(value: float, digits: int = 2) -> str:
    """Example: 0.134 is "0.13", 99.7 "100", 2710.3 "2,710"."""
    return f"{value:,.0f}" if value >= 99.5 else f"{value:.{digits}g}"


def about(seconds: float) -> str:
    """Example: 0.134 is "0.13 s", 41.2 "41 s", 5400 "1.5 h"."""
    for unit, size in (("s", 1.0), ("min", 60.0), ("h", _HOUR), ("days", 86400.0)):
        if seconds < 100 * size:
            return f"{plain(seconds / size)} {unit}"
    return f"{plain(seconds / 86400 / 365)} years"


_WIDE = 0.6  # an error bar above this is a factor both ways: no step takes less than no time


def with_bar(seconds: float, error: float) -> str:
    """Example: 41 s and 0.3 are "41 s +-30%", 17 s and 2.25 "17 s (5.2 s to 55 s)"."""
    if error <= _WIDE:
        return f"{about(seconds)} +-{error:.0%}"
    return f"{about(seconds)} ({about(seconds / (1 + error))} to {about(seconds * (1 + error))})"


class Scorecard:
    """Compares the steps of a run with its forecast. Without a forecast it does nothing."""

    def __init__(self, found: Forecast | None, directory: Path):
        self.forecast, self._directory = found, directory
        self._steps: list[Mapping[str, float]] = []

    def add(self, metrics: Mapping[str, float]) -> dict[str, float]:
        seconds = _seconds(metrics)
        if self.forecast is None or not seconds:
            return {}
        self._steps = [*self._steps[-_MOST:], seconds]
        return {"goodput/forecast_ratio": sum(seconds.values()) / self.forecast.step_s}

    def close(self) -> None:
        """Writes the card, where steps were measured."""
        steps = self._steps[_WARM_UP:] or self._steps
        if self.forecast is None or not steps:
            return
        names = dict.fromkeys(name for step in steps for name in step)
        measured = {name: statistics.median(step.get(name, 0.0) for step in steps) for name in names}
        ratio = statistics.median(sum(step.values()) for step in steps) / self.forecast.step_s
        card = {"forecast": asdict(self.forecast), "measured": measured, "ratio": ratio, "steps": len(steps)}
        try:
            write_whole(self._directory / FILE, json.dumps(card, indent=1) + "\n")
            file = Path(HISTORY).expanduser()
            file.parent.mkdir(parents=True, exist_ok=True)
            with file.open("a", encoding="utf-8") as stream:
                stream.write(json.dumps({"kind": self.forecast.kind, "ratio": ratio}) + "\n")
        except OSError as error:
            logger.warning("%s cannot be written: %s", FILE, error.strerror)


def scorecard_of(config: RunConfig, plan: RunPlan | None) -> Scorecard:
    """The card of a run that starts here, on this machine's own devices: gpu_name is for plans elsewhere."""
    found: Forecast | str = "no plan"
    try:
        make: Any = resolve("roll.simulate.forecast.forecast:forecast")
        found = make(config.model_copy(update={"gpu_name": None}), plan) if plan is not None else found
    except Exception as error:  # a forecast keeps no run from its start
        found = describe(error)
    if isinstance(found, str):
        logger.info("no forecast: %s", found)
        return Scorecard(None, Path(config.logging_dir))
    logger.info("forecast: %s", found.line)
    return Scorecard(found, Path(config.logging_dir))


def _seconds(metrics: Mapping[str, float]) -> dict[str, float]:
    """Seconds of a step by phase, without what comes only after some steps."""
    phases = phase_seconds(metrics)
    return {name: value for name, value in phases.items() if name not in ("validate", "checkpoint")}


def comparison(directory: Path) -> tuple[float, str] | None:
    """Measured step / forecast of a finished run, and a sentence about it, such as "a step took 2.1 x the forecast of
    4.4 s +-30 %: rollout 3.0 x"; None where it has no card."""
    try:
        card: dict[str, Any] = json.loads((directory / FILE).read_text(encoding="utf-8"))
        expected, measured, ratio = card["forecast"], card["measured"], float(card["ratio"])
        whole = sum(expected["phases"].values())
        found = f"a step took {plain(ratio)} x the forecast of {with_bar(whole, expected['error'])}"
        longer = {name: value - expected["phases"].get(name, 0.0) for name, value in measured.items()}
        name = max(longer, key=lambda phase: abs(longer[phase]))
        before = expected["phases"].get(name, 0.0)
        if abs(longer[name]) > _SLOW * whole and before:
            found += f": {TITLES.get(name, name)} {plain(measured[name] / before)} x"
        return ratio, found
    except (OSError, ValueError, KeyError, TypeError):
        return None
