"""What a run would do on other devices, or further ahead: played on a virtual clock by the real scheduler.

python -m roll.simulate play --config_path examples/tiny-sort --config_name tiny_sort
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace

from roll.configs.plan.rollout_bounds import RolloutBounds
from roll.errors import ConfigError, RollError
from roll.simulate.calibrate import calibrate
from roll.simulate.from_options import setup_of
from roll.simulate.options import parse
from roll.simulate.report import describe_gain, describe_report, describe_setup, table
from roll.simulate.search import frontier, search
from roll.simulate.simulation import simulate
from roll.utils.chrome_trace import write_chrome_trace
from roll.utils.text import visible


def main(argv: Sequence[str] | None = None) -> int:
    """0 done, 1 it failed, 2 the options or the configuration cannot work."""
    options, overrides = parse(argv)
    try:
        {"play": _play, "search": _search, "calibrate": _calibrate}[options.command](options, overrides)
    except ConfigError as error:
        print("The simulation cannot start:", *(f"  - {visible(p)}" for p in error.problems), sep="\n", file=sys.stderr)
        return 2
    except RollError as error:
        print(f"The simulation failed: {visible(str(error))}", file=sys.stderr)
        return 1
    return 0


def _play(options: argparse.Namespace, overrides: Sequence[str]) -> None:
    setup = setup_of(options, overrides)
    _say(describe_setup(setup))
    report = simulate(setup, options.steps, keeps_trace=options.trace is not None)
    _say(*describe_report(report))
    if setup.bounds.ahead:
        bounds = RolloutBounds(setup.bounds.num_groups)
        _say(describe_gain(report, simulate(replace(setup, bounds=bounds), options.steps)))
    if options.trace is not None:
        write_chrome_trace(options.trace, report.events, {"simulated": describe_setup(setup)})


def _search(options: argparse.Namespace, overrides: Sequence[str]) -> None:
    found = list(search(setup_of(options, overrides), options.ratios, options.train_shares, options.steps))
    _say(*table(found, frontier(found)))


def _calibrate(options: argparse.Namespace, overrides: Sequence[str]) -> None:
    _say(*calibrate(options, overrides))


def _say(*lines: str) -> None:
    print(*lines, sep="\n", flush=True)


if __name__ == "__main__":
    sys.exit(main())
