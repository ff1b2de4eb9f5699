"""Simulation of a run on other devices, or further ahead: the real scheduler plays it on a virtual clock.

roll simulate play --config_path examples/tiny-sort --config_name tiny_sort
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from roll.configs.plan.batch_plan import RolloutBounds
from roll.simulate.calibrate import calibrate
from roll.simulate.from_options import setup_of
from roll.simulate.setup import Setup
from roll.simulate.simulation import Candidate, Report, frontier, search, simulate
from roll.utils.spans import write_chrome_trace

# The command line of the simulator.

DESCRIPTION = "Simulates a run on a virtual clock: the real scheduler, with models of engines, trainer and rewards."
EPILOG = "docs/simulator.md says what is modelled, what is not, and how to calibrate."


def parse(argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """The options, and what is left: overrides of the YAML."""
    parser = argparse.ArgumentParser(
        prog="roll simulate",
        description=DESCRIPTION,
        epilog=EPILOG,
        allow_abbrev=False,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    play = commands.add_parser("play", help="one schedule, compared with the synchronous one", allow_abbrev=False)
    search = commands.add_parser(
        "search", help="schedules for different splits of devices, ratios and staleness", allow_abbrev=False
    )
    calibrate = commands.add_parser(
        "calibrate", help="read costs from a run and write a calibration file", allow_abbrev=False
    )
    for command in (play, search):
        _add_yaml(command)
        _add_run(command)
        _add_lengths(command)
    play.add_argument("--trace", type=Path, help="write a Chrome trace (chrome://tracing, ui.perfetto.dev) there")
    search.add_argument("--ratios", type=_at_least(0.0), nargs="+", default=[0.0, 0.25, 0.5, 1.0, 2.0])
    search.add_argument("--train_shares", type=_share, nargs="+", default=[1 / 8, 1 / 4, 3 / 8, 1 / 2, 5 / 8])
    calibrate.add_argument("--run", type=Path, required=True, help="output_dir of a synchronous run")
    calibrate.add_argument("--train_devices", type=_count, default=1, help="of that run. Default: 1")
    calibrate.add_argument("--engines", type=_count, default=1, help="of that run. Default: 1")
    calibrate.add_argument("--out", type=Path, required=True, help="the calibration file")
    return parser.parse_known_args(argv)


def _add_yaml(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config_path", "--config-path", default=".", help="folder of the YAML")
    parser.add_argument("--config_name", "--config-name", help="name of the YAML; without one, the options below count")
    parser.add_argument("--pipeline", default="rlvr", help="rlvr, agentic, or package.module:SPEC")


def _add_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--calibration",
        type=Path,
        help="file that `calibrate` wrote. Default: the YAML's forecast, or imagined",
    )
    parser.add_argument("--groups", type=_count, help="per step. Default: the YAML's, or 128")
    parser.add_argument("--group_size", type=_count, help="responses of a group. Default: the YAML's, or 16")
    parser.add_argument("--devices", type=_count, help="of the run. Default: the YAML's, or 16")
    parser.add_argument("--train_devices", type=_count, help="of these; the others sample, with --shared all")
    parser.add_argument("--devices_per_engine", type=_count)
    parser.add_argument(
        "--shared",
        action=argparse.BooleanOptionalAction,
        help="all devices sample, and train in turns, or --train_devices of them do",
    )
    parser.add_argument("--async_generation_ratio", type=_at_least(0.0), help="steps that groups run ahead")
    parser.add_argument("--max_staleness", type=_natural, help="in steps. Default: as in a run")
    parser.add_argument("--unfinished", choices=("carry", "drop", "defer"), help="groups when a step has its own")
    parser.add_argument("--grace_s", type=_at_least(0.0), help="that a step waits for older groups")
    parser.add_argument("--max_running_requests", type=_count, help="responses in an engine at once")
    parser.add_argument("--steps", type=_count, default=10, help="to play, after the first ones. Default: 10")
    parser.add_argument("--seed", type=_natural, default=0)


def _add_lengths(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--lengths", type=Path, help="directory of rollouts/ or rollout_mock dumps to take lengths from"
    )
    parser.add_argument(
        "--median_length", type=_at_least(1.0), help="of a log-normal response. Default: .134 of the cap"
    )
    parser.add_argument("--spread_of_prompts", type=_at_least(0.0), default=0.75, help="sigma between groups")
    parser.add_argument("--spread_of_answers", type=_at_least(0.0), default=0.58, help="sigma within a group")
    parser.add_argument("--cap", type=_count, help="longest response. Default: the YAML's response_length, or 16384")
    parser.add_argument("--prompt_tokens", type=_natural, help="Default: half of the YAML's prompt_length, or 512")
    parser.add_argument("--turns", type=_count, default=1, help="of an episode, each as long as a response")
    parser.add_argument("--observation_tokens", type=_natural, default=0, help="before each turn but the first")
    parser.add_argument("--delay_s", type=_at_least(0.0), default=0.0, help="median, of reward or environment")
    parser.add_argument("--delay_spread", type=_at_least(0.0), default=0.5, help="sigma of its logarithm")
    parser.add_argument("--reward_workers", type=_count, help="how many delays run at once. Default: all")


def _count(text: str) -> int:
    if (value := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not at least 1")
    return value


def _natural(text: str) -> int:
    if (value := int(text)) < 0:
        raise argparse.ArgumentTypeError(f"{text} is not at least 0")
    return value


def _at_least(least: float) -> Callable[[str], float]:
    def number(text: str) -> float:
        if not least <= (value := float(text)) < float("inf"):
            raise argparse.ArgumentTypeError(f"{text} is not at least {least:g}")
        return value

    return number


def _share(text: str) -> float:
    if not 0 < (value := float(text)) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not between 0 and 1")
    return value


# What a simulation has to say, as text.

_LABEL = 16
_GONE = {"drop": "dropped", "defer": "deferred"}
_PHASES = ("rollout", "gather", "score", "train_critic", "train_actor", "weight_sync")


def describe_setup(setup: Setup) -> str:
    bounds = setup.bounds
    oldest = _counted(bounds.max_staleness, "step")
    ahead = f"{bounds.ahead} groups ahead, at most {oldest} old" if bounds.ahead else "synchronous"
    if bounds.ahead and bounds.unfinished != "carry":
        ahead = f"{bounds.ahead} more are started, and those not finished are {_GONE[bounds.unfinished]}"
    return (
        f"{bounds.num_groups} groups of {setup.group_size}; devices {setup.devices}, "
        f"{_counted(setup.devices.num_engines, 'engine')}; {ahead}"
    )


def describe_report(report: Report) -> Iterator[str]:
    phases = [f"{name} {report.phase_s(name):.4g}" for name in _PHASES if report.phase_s(name) >= 0.0005]
    yield _line("step", f"{report.step_s:.4g} s (median {report.median_step_s:.4g}): {', '.join(phases)}")
    engines = [f"{state} {report.fraction(state):.1%}" for state in ("busy", "held", "away", "idle")]
    yield _line("engines", ", ".join(engines))
    yield _line("trainer", f"busy {report.trainer_busy_fraction:.1%}")
    ages = report.token_ages
    histogram = ", ".join(f"{age}: {ages[age] / ages.total():.1%}" for age in sorted(ages))
    yield _line("staleness", f"groups {report.staleness_mean:.2f} mean, {report.staleness_max} max; tokens {histogram}")
    rate = report.trained_tokens_per_s
    useful = f"{report.useful_fraction:.1%} of the sampled ones"
    yield _line("trained tokens", f"{rate:.4g} per s, {rate / report.num_devices:.4g} per device; {useful}")
    bias = report.length_bias
    reported = "" if bias is None else f" (a run reports {bias:.3f})"
    yield _line("length bias", f"{report.length_ratio:.3f}{reported}")
    if report.num_preemptions:
        yield _line("preemptions", str(report.num_preemptions))


def describe_gain(report: Report, synchronous: Report) -> str:
    return _line("gain", f"{synchronous.step_s / report.step_s:.2f} x of {synchronous.step_s:.4g} s, synchronous")


def table(results: Sequence[Candidate], best: Sequence[Candidate]) -> Iterator[str]:
    """All that was tried, the frontier marked."""
    first = min((f.report.step_s for f in results if not f.setup.bounds.ahead), default=None)
    yield f"{'devices':>14}{'r':>6}{'S':>4}{'s/step':>10}{'x':>7}{'staleness':>12}{'engines':>10}{'trainer':>9}"
    for one in results:
        report = one.report
        gain = f"{first / report.step_s:.2f}" if first else ""
        ages = f"{report.staleness_mean:.2f}/{report.staleness_max}"
        mark = "  <" if one in best else ""
        yield (
            f"{one.setup.devices!s:>14}{one.ratio:>6g}{one.setup.bounds.max_staleness:>4}{report.step_s:>10.4g}"
            f"{gain:>7}{ages:>12}{report.fraction('busy'):>10.0%}{report.trainer_busy_fraction:>9.0%}{mark}"
        )
    yield "< nothing that was tried is faster at the same or less mean staleness; x: of the fastest synchronous one"


def _line(label: str, text: str) -> str:
    return f"{label:<{_LABEL}}{text}"


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def run(argv: Sequence[str]) -> Iterator[str]:
    """The lines of one of its commands. Raises ConfigError for options or a configuration that cannot work."""
    options, overrides = parse(argv)
    yield from {"play": _play, "search": _search, "calibrate": _calibrate}[options.command](options, overrides)


def _play(options: argparse.Namespace, overrides: Sequence[str]) -> Iterator[str]:
    setup = setup_of(options, overrides)
    yield describe_setup(setup)
    report = simulate(setup, options.steps, keeps_trace=options.trace is not None)
    yield from describe_report(report)
    if setup.bounds.ahead:
        bounds = RolloutBounds(setup.bounds.num_groups)
        yield describe_gain(report, simulate(replace(setup, bounds=bounds), options.steps))
    if options.trace is not None:
        write_chrome_trace(options.trace, report.events, {"simulated": describe_setup(setup)})


def _search(options: argparse.Namespace, overrides: Sequence[str]) -> Iterator[str]:
    results = list(search(setup_of(options, overrides), options.ratios, options.train_shares, options.steps))
    yield from table(results, frontier(results))


def _calibrate(options: argparse.Namespace, overrides: Sequence[str]) -> Iterator[str]:
    yield from calibrate(options.run, options.train_devices, options.engines, options.out)
