"""`roll doctor`: what of this machine stands in the way of a run, and what to do about it."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Sequence

from roll.doctor import gpus, machine, packages
from roll.doctor.finding import Finding, Section, findings, lines, summary
from roll.utils.output import say

OK, PROBLEMS = 0, 1
USAGE = """roll doctor

Looks at this machine: packages, GPUs, memory, limits, environment. Each line is ok, a hint or a problem; what can be
done about it stands below. Exit code 1 where there is a problem, else 0. docs/doctor.md."""


def run(argv: Sequence[str]) -> int:
    """Shows findings as they come. The exit code: 0 none is a problem, 1 some are."""
    _parser().parse_args(argv)
    found: list[Finding] = []
    for section in _sections():
        say(section.title)
        for finding in findings(section):
            found.append(finding)
            for line in lines(finding):
                say(line)
    say(summary(found))
    return PROBLEMS if any(finding.level == "problem" for finding in found) else OK


def _sections() -> Iterator[Section]:
    yield Section(
        "This machine",
        {
            "Python": machine.python_findings,
            "packages": packages.package_findings,
            "torch": packages.torch_findings,
            "GPUs": gpus.gpu_findings,
            "memory": machine.host_findings,
            "/dev/shm": machine.shm_findings,
            "limits": machine.limit_findings,
            "environment": machine.environment_findings,
            "clock": machine.clock_findings,
            "Ray": lambda: machine.ray_findings(os.environ.get("RAY_ADDRESS")),
        },
    )


def _parser() -> argparse.ArgumentParser:
    return argparse.ArgumentParser(prog="roll doctor", usage=USAGE, allow_abbrev=False)
