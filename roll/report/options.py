"""The words of `roll report`."""

from __future__ import annotations

import argparse

USAGE = """roll report RUN [OTHER_RUN ...] [--out report.html] [--steps 6]

RUN is the output_dir of a run, finished or not, or its logging_dir; that of stages stands for each of them. One file
is written: curves, times, how rewards and lengths are spread, drift between engine and trainer, failures with their
causes, sample rollouts, the configuration. Further runs are drawn beside the first, with what their configurations
differ in. docs/report.md."""


def argument_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="roll report", usage=USAGE, allow_abbrev=False)
    parser.add_argument("runs", nargs="+", metavar="RUN", help="output_dir of a run")
    parser.add_argument("--out", default="report.html", help="the file to write")
    parser.add_argument("--steps", type=int, default=6, help="steps of each run whose sample rollouts are shown")
    return parser
