"""Simulation of a run on other devices, or further ahead: it plays on a virtual clock.

roll simulate examples/tiny-sort/tiny_sort.yaml async_generation_ratio=0.5
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from roll.configs.load.loader import compose_tree, resolve_tree, yaml_at
from roll.configs.plan.batch_plan import BatchPlan, RolloutBounds
from roll.configs.sections.algorithm import AlgorithmConfig
from roll.errors import ConfigError
from roll.run.kind import kind_of
from roll.run.start.load import check
from roll.simulate.forecast.forecast import simulated
from roll.simulate.options import parser
from roll.simulate.setup import Costs, Setup
from roll.simulate.simulation import Report, simulate
from roll.utils.text import counted

# What a simulation has to say, as text.

_LABEL = 16
_GONE = {"drop": "dropped", "defer": "deferred"}
_PHASES = ("rollout", "gather", "score", "train_critic", "train_actor", "weight_sync")


def describe_setup(setup: Setup) -> str:
    bounds = setup.bounds
    oldest = counted(bounds.max_staleness, "step")
    ahead = f"{bounds.ahead} groups ahead, at most {oldest} old" if bounds.ahead else "synchronous"
    if bounds.ahead and bounds.unfinished != "carry":
        ahead = f"{bounds.ahead} more are started, and those not finished are {_GONE[bounds.unfinished]}"
    return (
        f"{bounds.num_groups} groups of {setup.group_size}; devices {setup.devices}, "
        f"{counted(setup.devices.num_engines, 'engine')}; {ahead}"
    )


def describe_report(report: Report) -> Iterator[str]:
    phases = [f"{name} {report.phase_s(name):.4g}" for name in _PHASES if report.phase_s(name) >= 0.0005]
    yield _line("step", f"{report.step_s:.4g} s (median {report.median_step_s:.4g}): {', '.join(phases)}")
    engines = [f"{state} {report.fraction(state):.1%}" for state in ("busy", "held", "away", "idle")]
    yield _line("engines", ", ".join(engines))
    yield _line("trainer", f"busy {report.trainer_busy_fraction:.1%}")
    yield _line("staleness", f"{report.staleness_mean:.2f} mean, {report.staleness_max} max")
    rate = report.trained_tokens_per_s
    useful = f"{report.useful_fraction:.1%} of the sampled ones"
    yield _line("trained tokens", f"{rate:.4g} per s, {rate / report.devices.total:.4g} per device; {useful}")


def describe_gain(report: Report, synchronous: Report) -> str:
    return _line("gain", f"{synchronous.step_s / report.step_s:.2f} x of {synchronous.step_s:.4g} s, synchronous")


def _line(label: str, text: str) -> str:
    return f"{label:<{_LABEL}}{text}"


def run(argv: Sequence[str]) -> Iterator[str]:
    """The lines of a simulation. Raises ConfigError as a start does, and for a kind of run that samples nothing."""
    options, overrides = parser().parse_known_args(argv)
    raw = compose_tree(*yaml_at(options.config), overrides)
    spec = kind_of(raw.tree)
    loaded = check(spec, resolve_tree(raw, spec.config_class()))
    config, plan = loaded.config, loaded.plan
    if not isinstance(config, AlgorithmConfig) or not isinstance(plan, BatchPlan):
        raise ConfigError(f"{options.config}: a run of the kind {spec.name} samples nothing to simulate.")
    setup = simulated(config, plan)
    yield describe_setup(setup)
    if setup.costs == Costs():
        yield _line("costs", "imagined, since the forecast of this run is not known: compare schedules, not seconds")
    report = simulate(setup, options.steps)
    yield from describe_report(report)
    if setup.bounds.ahead:
        bounds = RolloutBounds(setup.bounds.num_groups)
        yield describe_gain(report, simulate(replace(setup, bounds=bounds), options.steps))
