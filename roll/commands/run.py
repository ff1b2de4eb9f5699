"""The command line of every pipeline, and of several in stages: load, check, print the plan, run.

python examples/start_rlvr_pipeline.py --config_path tiny-sort --config_name tiny_sort [--dry_run] [key=value ...]
roll run examples/tiny-sort/tiny_sort.yaml [--dry_run] [--elsewhere] [--max_restarts N] [key=value ...]
"""

import argparse
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from roll.commands.options import plan_parser, run_parser, script_parser, spelled
from roll.configs.load.loader import _say, compose_tree, locate_yaml, resolve_tree, without_unset, yaml_at
from roll.configs.plan.describe import brief
from roll.configs.sections.run import STAGES
from roll.errors import ConfigError
from roll.run.kind import kind_of
from roll.run.spec import PipelineSpec, pipeline_of
from roll.run.start.load import Loaded, check, plan_text
from roll.run.start.memory_report import memory_report
from roll.run.start.preflight import multimodal_notes
from roll.run.start.start_checks import MemoryReport, StartOptions, beside_mistakes, foreseen, refusals
from roll.utils.imports import resolve
from roll.utils.logging import OK, masked_output, reported

if TYPE_CHECKING:
    from roll.run.stages.planned import Stage

_reported = partial(reported, cannot="The run cannot start:", failed="The run failed ({}):")


def main(pipeline: str = "rlvr", argv: Sequence[str] | None = None, script: str | None = None) -> int:
    """Runs one pipeline, a built-in name or `package.module:SPEC`, or the stages of a YAML, from command-line arguments
    and returns the exit code: 0 done, 1 the run failed, 2 the configuration, its plan or this machine cannot work, 128
    + its number a signal. Code beside the YAML can be imported."""
    words = map(spelled, sys.argv[1:] if argv is None else argv)
    arguments, overrides = script_parser(pipeline).parse_known_args([*words])
    find = partial(locate_yaml, arguments.config_path, arguments.config_name or "", script)
    with masked_output():
        return _ending(pipeline, find, overrides, _start_options(arguments))


def run_command(argv: Sequence[str]) -> int:
    """`roll run CONFIG.yaml [--dry_run] [--max_restarts N] [key=value ...]`: a run of any kind, or stages; the exit
    code of `main`."""
    arguments, overrides = run_parser().parse_known_args(argv)
    find = partial(yaml_at, arguments.config)
    if arguments.max_restarts and not arguments.dry_run:
        return _reported(lambda: _supervise(find, arguments.config, overrides, arguments.max_restarts))
    return _ending(None, find, overrides, _start_options(arguments))


def plan_command(argv: Sequence[str]) -> int:
    """`roll plan CONFIG.yaml [--elsewhere] [--all] [key=value ...]`: the dry run of the same."""
    arguments, overrides = plan_parser().parse_known_args(argv)
    options = replace(_start_options(arguments), is_plan=True)
    return _ending(None, partial(yaml_at, arguments.config), overrides, options)


def start_yaml(config: str, overrides: Sequence[str], is_plan: bool = False, elsewhere: bool = False) -> int:
    """The same for words that are taken apart already."""
    return _ending(None, partial(yaml_at, config), overrides, StartOptions(is_plan, elsewhere))


def _ending(
    pipeline: str | None, find: Callable[[], tuple[Path, str]], overrides: Sequence[str], options: StartOptions
) -> int:
    """The exit code of what is started, with what is wrong told."""

    def start() -> int:
        directory, name = find()
        raw, start_options = compose_tree(directory, name, overrides), options
        if options.is_plan:
            raw, unset = without_unset(raw)
            start_options = replace(options, unset=unset)
        if STAGES in raw.tree:
            from roll.run.stages.planned import plan_stages

            return _start_stages(plan_stages(raw, overrides, pipeline), start_options)
        spec = pipeline_of(pipeline) if pipeline else kind_of(raw.tree)
        beside = partial(beside_mistakes, spec, start_options)
        return _start(spec, check(spec, resolve_tree(raw, spec.config_class()), beside), start_options)

    return _reported(start)


def _supervise(
    find: Callable[[], tuple[Path, str]], config_path: str, overrides: Sequence[str], max_restarts: int
) -> int:
    """The run as a child process; here only where it writes is looked up."""
    from roll.run.supervisor import Supervisor  # numpy, as all that reads checkpoints

    raw = compose_tree(*find(), overrides)
    if STAGES in raw.tree:
        from roll.run.stages.planned import plan_stages

        runs = [stage.loaded.config for stage in plan_stages(raw, overrides, None)]
    else:
        spec = kind_of(raw.tree)
        runs = [check(spec, resolve_tree(raw, spec.config_class())).config]
    command = (sys.executable, "-m", "roll", "run", config_path, *overrides)
    return Supervisor(command, [run.checkpoint_dir for run in runs], max_restarts).run()


def _start(spec: PipelineSpec, loaded: Loaded, options: StartOptions) -> int:
    memory = _show(spec, loaded, loaded, options)
    if options.is_plan:
        findings = foreseen(spec, loaded, memory, options)
        return _verdict(findings.stops, [*findings.lines, *_show_forecast(loaded, memory, options)])
    _refuse(spec, loaded, memory)
    return int(spec.make_run(loaded.config, loaded.plan).run())


def _start_stages(stages: "Sequence[Stage]", options: StartOptions) -> int:
    """All plans and problems first, then what is not finished."""
    from roll.run.stages.planned import StageProblems
    from roll.run.stages.progress import (
        progress_lines,
        progress_of,
        progress_problems,
        run_stages,  # numpy, as all that reads checkpoints
    )

    states = [progress_of(stage) for stage in stages]
    against, lines = StageProblems(len(stages)), list[str]()
    for stage, state in zip(stages, states, strict=True):
        _say("\n".join([*stage.lines(len(stages)), *progress_lines(state)]))
        memory = _show(stage.spec, stage.loaded, stage.shown, options)
        with against.about(stage.entry):
            if options.is_plan:
                findings = foreseen(stage.spec, stage.loaded, memory, options, stage.stand_ins)
                against.add(stage.entry, findings.stops)
                lines += [*findings.lines, *_show_forecast(stage.loaded, memory, options)]
            elif state is None or not state.is_finished:
                against.add(stage.entry, refusals(stage.spec, stage.loaded, memory, stage.stand_ins))
            else:
                against.add(stage.entry, (problem.text for problem in memory.problems))
    stops = [*against.texts, *progress_problems(stages, states)]
    if options.is_plan:
        return _verdict(stops, dict.fromkeys(lines))
    if stops:
        raise ConfigError(*stops)
    code = run_stages(stages, _before)
    if code == OK:
        _say("All stages are finished.")
    return code


def _before(stage: "Stage", loaded: Loaded) -> None:
    _say(f"Stage {stage.entry.number}: {stage.name}")
    _refuse(stage.spec, loaded, memory_report(loaded.config, loaded.plan))


def _show(spec: PipelineSpec, loaded: Loaded, shown: Loaded, options: StartOptions) -> MemoryReport:
    """Prints a plan, its memory, and warnings."""
    memory = memory_report(loaded.config, loaded.plan)
    text = plan_text(spec, shown)
    if memory.text and (options.is_plan or memory.knows_gpus):
        text += f"\n{memory.text}"
    _say(text if options.lists_all else brief(text))
    for warning in (*loaded.warnings, *multimodal_notes(loaded.config), *memory.warnings):
        _say(f"Warning: {warning}", "warning")
    return memory


def _show_forecast(loaded: Loaded, memory: MemoryReport, options: StartOptions) -> list[str]:
    """Prints how long the run takes, and returns what the last lines of the plan say of it."""
    if not memory.facts:  # the models are not here
        return []
    outlook: Any = resolve("roll.simulate.forecast.forecast:outlook")
    found = outlook(loaded.config, loaded.plan, memory.facts, options.elsewhere)
    if isinstance(found, str):
        _say(f"Time     not known: {found}")
        return []
    _say("\n".join(found.lines()))
    return [*found.warnings()]


def _refuse(spec: PipelineSpec, loaded: Loaded, memory: MemoryReport) -> None:
    if problems := refusals(spec, loaded, memory):
        raise ConfigError(*problems)


def _verdict(stops: Sequence[str], lines: Iterable[str]) -> int:
    """The end of a plan: its last line and its exit code, which are made together."""
    for line in lines:
        _say(line)
    if stops:
        raise ConfigError(*stops)
    _say("The plan works.", "good")
    return OK


def _start_options(arguments: argparse.Namespace) -> StartOptions:
    return StartOptions(is_plan=arguments.dry_run, elsewhere=arguments.elsewhere, lists_all=arguments.all)
