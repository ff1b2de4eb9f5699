"""Runs the suite and judges it: `python -m tests.gpu` on a machine with GPUs, `--device cpu` to rehearse without."""

from __future__ import annotations

import argparse
import fnmatch
import math
import os
import shutil
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.gpu.check import Check, Machine, Outcome, shares_gpus, why_skipped
from tests.gpu.machine import describe_machine, machine, save_environment, visible_gpus
from tests.gpu.report import Report, replace_section, section, store, stored_reports
from tests.gpu.runner import REPOSITORY, Runner
from tests.gpu.table import CHECKS, FIRST

_ENDINGS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
FOLDER, PAGE, REPORTS = REPOSITORY / "reports", "gpu.md", "gpu"


def main(arguments: Sequence[str] | None = None, checks: Sequence[Check] = CHECKS) -> int:
    """0: all that could run has passed; 1: something has not; 2: nothing could run; 128 + n: ended by signal n."""
    options = _parser().parse_args(arguments)
    devices = visible_gpus()[: options.gpus] if options.device == "cuda" else [str(i) for i in range(options.gpus or 2)]
    names = [check.name for check in checks]
    if unknown := [name for name in options.only if not fnmatch.filter(names, name)]:
        _say(f"no check is called {' or '.join(unknown)}; there are: {', '.join(names)}")
        return 2
    chosen = [check for check in checks if any(fnmatch.fnmatch(check.name, name) for name in options.only)]
    here = machine(options.device, devices, {package for check in checks for package in check.packages})
    if options.minutes:
        places = {name: place for place, name in enumerate(FIRST)}
        chosen.sort(key=lambda check: places.get(check.name, len(places)))
    else:
        chosen.sort(key=lambda check: not shares_gpus(check, here))  # one that is alone waits for all of these
    if options.list:
        for check in chosen:
            _say(f"{check.name}: {why_skipped(check, here) or 'can run'}")
        return 0
    if options.write_page:
        _write_page(options.reports, checks)
        return 0
    if not devices:
        _say("no GPU is visible (nvidia-smi, CUDA_VISIBLE_DEVICES). --device cpu rehearses without.")
        return 2
    if options.out.exists():
        if any(options.out.iterdir()) and not (options.out / "report.json").exists():
            _say(f"--out: {options.out} holds what no run left there. Give a new directory")
            return 2
        shutil.rmtree(options.out)
    options.out.mkdir(parents=True)
    report = Report(options.device, describe_machine(options.device, devices))
    save_environment(options.out)
    limit_s = 60 * options.minutes if options.minutes else math.inf
    runner = Runner(here, devices, options.out, _say, options.sharing or _sharing(here), limit_s)
    status = _run(runner, chosen, report)
    report.write(options.out / "report.json")
    (options.out / "table.md").write_text(section(checks, [report]) + "\n")
    _conclude(report, options)
    if options.device == "cuda":
        store(report, options.reports / REPORTS)
        _write_page(options.reports, checks)
    return status


def _sharing(machine: Machine) -> int:
    """How many checks that measure no GPU are on one at a time: each takes two cores, and 2 GB of the GPU at most."""
    cores = len(os.sched_getaffinity(0))
    return max(1, min(6, cores // 2 // machine.num_gpus)) if machine.device == "cuda" else 1


def _write_page(folder: Path, checks: Sequence[Check]) -> None:
    page = folder / PAGE
    page.write_text(replace_section(page.read_text(), section(checks, stored_reports(folder / REPORTS))))
    _say(f"written: {page}")


def _run(runner: Runner, checks: Sequence[Check], report: Report) -> int:
    previous = {number: signal.getsignal(number) for number in _ENDINGS}
    for number in _ENDINGS:
        if previous[number] is not signal.SIG_IGN:  # as nohup leaves SIGHUP
            signal.signal(number, _raise)
    try:
        for outcome in runner.run(checks):
            report.outcomes.append(outcome)
            _say(f"{outcome.name}: {outcome.state}{f': {outcome.reason}' if outcome.reason else ''}")
    except _Ended as end:
        done = {outcome.name for outcome in report.outcomes}
        report.outcomes.extend(Outcome(c.name, "interrupted", "not done") for c in checks if c.name not in done)
        return 128 + end.number  # signals stay ignored: the report is still to be written
    for number, handler in previous.items():
        signal.signal(number, handler)
    if report.failures:
        return 1
    return 0 if any(outcome.state == "passed" for outcome in report.outcomes) else 2


class _Ended(Exception):
    def __init__(self, number: int):
        self.number = number


def _raise(number: int, frame: Any) -> None:
    for each in _ENDINGS:
        signal.signal(each, signal.SIG_IGN)  # a second Ctrl-C would leave processes behind
    raise _Ended(number)


def _conclude(report: Report, options: argparse.Namespace) -> None:
    states = [outcome.state for outcome in report.outcomes]
    _say(", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states)))
    if report.failures:
        _say(f"failed: {', '.join(outcome.name for outcome in report.failures)}")
        _say(
            f"To tell of it, send the whole directory {options.out}: report.json, the log of every check, "
            "pip_freeze.txt and nvidia_smi.txt."
        )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.gpu", description=__doc__)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda", help="cpu: to rehearse the same checks")
    parser.add_argument("--gpus", type=_count, help="use so many GPUs at most; in a rehearsal: slots (2)")
    parser.add_argument("--minutes", type=_count, help="run what fits into that time, what tells most first")
    parser.add_argument(
        "--sharing",
        type=_count,
        help="checks on one GPU at a time, but for those that measure it (6, or as cores allow)",
    )
    parser.add_argument("--only", nargs="+", default=["*"], metavar="NAME", help="checks, also by patterns: 'train-*'")
    parser.add_argument("--out", type=_path, default=REPOSITORY / "output" / "gpu_report", help="emptied first")
    parser.add_argument(
        "--reports", type=_path, default=FOLDER, help=f"where {PAGE} and {REPORTS} are (no rehearsal goes there)"
    )
    parser.add_argument("--write-page", action="store_true", help=f"run nothing, write {PAGE} from {REPORTS}")
    parser.add_argument("--list", action="store_true", help="say which checks can run here, and why others cannot")
    return parser


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 1 up")
    return int(text)


def _path(text: str) -> Path:
    return Path(text).resolve()  # checks run in the repository


def _say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
