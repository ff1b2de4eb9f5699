"""`roll report`: what runs left on disk, as one HTML file that needs no network."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from roll.errors import ConfigError
from roll.report.page import MOST_RUNS, render
from roll.report.run_files import earlier_starts, read_run, runs_at

USAGE = """roll report RUN [OTHER_RUN ...] [--out report.html] [--steps 6]

RUN is the output_dir of a run, finished or not, or its logging_dir; that of stages stands for each of them. One file
is written: curves, times, how rewards and lengths are spread, drift between engine and trainer, failures with their
causes, sample rollouts, the configuration. Further runs are drawn beside the first, with what their configurations
differ in, and so are earlier starts in the same folder (metrics.1.jsonl). docs/report.md."""


def run(argv: Sequence[str]) -> list[str]:
    """Raises ConfigError for words that are no call, and for a directory without a run."""
    options = _parser().parse_args(argv)
    runs = [run for given in options.runs for run in runs_at(Path(given))]
    if len(runs) > MOST_RUNS:
        raise ConfigError(f"{len(runs)} runs: at most {MOST_RUNS} can be told apart in one report.")
    out = Path(options.out)
    if out.is_dir():
        raise ConfigError(f"--out {out} is a directory: name a file in it.")
    found = [read_run(directory) for directory in runs]
    found += [start for run in found for start in earlier_starts(run)][: MOST_RUNS - len(found)]
    page = render(found, options.steps)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(page.html, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--out {out} cannot be written: {error.strerror}") from error
    size = out.stat().st_size / 1e6
    return [f"{out}: {page.num_charts} curves, {page.num_samples} sample rollouts, {size:.1f} MB"]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="roll report", usage=USAGE, allow_abbrev=False)
    parser.add_argument("runs", nargs="+", metavar="RUN", help="output_dir of a run")
    parser.add_argument("--out", default="report.html", help="the file to write")
    parser.add_argument("--steps", type=int, default=6, help="steps of each run whose sample rollouts are shown")
    return parser
