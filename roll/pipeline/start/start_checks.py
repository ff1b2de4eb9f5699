"""What stands against a start on this machine and in the data; a dry run foresees a part of it."""

from collections.abc import Collection

from roll.configs.problems import Problem, together
from roll.distributed.strategy.table import class_problems
from roll.errors import ConfigError
from roll.pipeline.display.memory_report import MemoryReport
from roll.pipeline.spec import PipelineSpec
from roll.pipeline.start.load import Loaded
from roll.pipeline.start.preflight import choices, machine_report
from roll.utils.imports import import_all

NONE: frozenset[str] = frozenset()


def refusals(spec: PipelineSpec, loaded: Loaded, memory: MemoryReport, ignored: Collection[str] = NONE) -> list[str]:
    """Everything that this machine or the data say against the run. Findings on `ignored` keys are left out."""
    problems = _about_others([*machine_report(loaded.config).problems, *memory.machine_problems], ignored)
    if not problems:
        try:
            import_all(loaded.config.external_lib)
        except ImportError as error:
            return [f"external_lib: {error}."]
    problems += [problem.text for choice in choices(loaded.config) for problem in class_problems(choice)]
    problems += map(str, spec.findings(spec.data_problems, (Problem, str), loaded.config))
    return together(problems)


def foreseen(
    spec: PipelineSpec, loaded: Loaded, memory: MemoryReport, ignored: Collection[str] = NONE
) -> tuple[list[str], list[str]]:
    """What would stop a real run, as far as a dry run can tell, and lines on what it has seen and not looked at. Raises
    ConfigError for what would stop it on any machine."""
    report = machine_report(loaded.config)
    found = (*report.problems, *memory.machine_problems, *spec.findings(spec.machine_problems, Problem, loaded.config))
    if certain := _about_others([problem for problem in found if problem.anywhere], ignored):
        raise ConfigError(*together(certain))
    lines = spec.findings(spec.reports, str, loaded.config)
    lines += [f"Not checked: {reason}" for reason in report.unchecked]
    return together(_about_others(found, ignored)), [*lines, f"Not checked in a dry run: {spec.unchecked}."]


def _about_others(problems: Collection[Problem], ignored: Collection[str]) -> list[str]:
    return [problem.text for problem in problems if not set(problem.keys) & set(ignored)]
