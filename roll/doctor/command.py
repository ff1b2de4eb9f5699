"""`roll doctor`: what on this machine keeps a run from starting, and how to fix it."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from roll.doctor import machine, packages
from roll.doctor.machine import Finding, Section, findings, lines, summary
from roll.errors import ConfigError
from roll.utils.logging import say
from roll.utils.network import cluster_address

OK, PROBLEMS = 0, 1
AUDITED_ROWS = 32  # of each domain
USAGE = """roll doctor [CONFIG.yaml | RUN_DIR] [key=value ...] [--log FILE_OR_RUN_DIR]

Checks this machine: packages, GPUs, memory, limits, environment. With a YAML it also checks the plan, memory, disks,
models and data, and takes the first rows through template, tokenizer and reward; nothing is started. With the
output_dir of a run it says whether that learns, what stands in its way, and what the errors of its logs mean. With
--log it explains the errors in a log. Each line is ok, a hint or a problem, with the remedy below. Exit code 1 if there
is a problem, else 0; 2 for a wrong call. docs/doctor.md, docs/health.md."""


def run(argv: Sequence[str]) -> int:
    """Shows findings as they come. The exit code: 0 none is a problem, 1 some are. Raises ConfigError for words that
    are no call."""
    options = doctor_parser().parse_intermixed_args(argv)
    reported: list[Finding] = []
    config = str(options.config or "")
    is_run = bool(config) and Path(config).is_dir()
    if is_run and (options.overrides or options.log):
        raise ConfigError(f"{config} is the folder of a run: neither overrides nor --log go with it.")
    for section in _of_a_run(config) if is_run else [_machine(), *_sections(options)]:
        say(section.title)
        for finding in findings(section):
            reported.append(finding)
            for line in lines(finding):
                say(line)
    say(summary(reported))
    return PROBLEMS if any(finding.level == "problem" for finding in reported) else OK


def _machine() -> Section:
    return Section(
        "This machine",
        {
            "Python": machine.python_findings,
            "packages": packages.package_findings,
            "torch": packages.torch_findings,
            "GPUs": packages.gpu_findings,
            "memory": machine.host_findings,
            "/dev/shm": machine.shm_findings,
            "limits": machine.limit_findings,
            "environment": machine.environment_findings,
            "Ray": lambda: machine.ray_findings(os.environ.get("RAY_ADDRESS")),
        },
    )


def _of_a_run(directory: str) -> Iterator[Section]:
    from roll.doctor import logs  # what a report imports
    from roll.report.run_files import find_run, runs_at

    for run in map(find_run, runs_at(Path(directory))):
        yield Section(str(run.directory), {"health": partial(logs.health_findings, run.directory)})
        if any(run.logs.glob("*.log")):
            yield Section("Errors in logs", {"logs": partial(logs.log_findings, logs.log_files(str(run.logs)))})


def _sections(options: argparse.Namespace) -> Iterator[Section]:
    folders: list[Path] = []
    if options.config is not None:
        from roll.doctor.runs import run_sections  # what a dry run imports

        sections = run_sections(options.config, options.overrides)
        yield from sections
        folders = [section.folder for section in sections if section.folder is not None]
    if cluster_address() is not None:
        yield Section("The cluster", {"nodes": lambda: machine.cluster_findings(folders[0] if folders else None)})
    if options.log is not None:
        from roll.doctor import logs

        files = logs.log_files(options.log)
        yield Section("Errors in logs", {"logs": lambda: logs.log_findings(files)})


def doctor_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="roll doctor", usage=USAGE, allow_abbrev=False)
    parser.add_argument(
        "config",
        nargs="?",
        metavar="CONFIG.yaml | RUN_DIR",
        help="the YAML of a run to start, or the output_dir of a run",
    )
    parser.add_argument("overrides", nargs="*", default=[], metavar="key=value", help="overrides of its keys")
    parser.add_argument("--log", metavar="FILE_OR_RUN_DIR", help="a log file, or the output_dir of a run")
    return parser


def audit_parser() -> argparse.ArgumentParser:
    text = "Tries a run's rewards on made-up responses: which earn what only right ones should? docs/health.md."
    parser = argparse.ArgumentParser(prog="roll audit", description=text, allow_abbrev=False)
    parser.add_argument("config", metavar="CONFIG.yaml", help="the YAML of an RLVR run")
    parser.add_argument(
        "--rows", type=int, default=AUDITED_ROWS, metavar="N", help=f"of each domain; default: {AUDITED_ROWS}"
    )
    return parser
