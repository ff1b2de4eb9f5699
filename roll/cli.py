"""The command line of every pipeline: load, check, print the plan, run.

python examples/start_rlvr_pipeline.py --config_path tiny-sort --config_name tiny_sort [--dry_run] [key=value ...]
"""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from roll.configs.load.loader import yaml_names
from roll.configs.plan.describe import describe
from roll.configs.problems import Problem, together
from roll.distributed.strategy.table import class_problems
from roll.errors import ConfigError, RollError
from roll.pipeline.load import Loaded, load
from roll.pipeline.memory_report import MemoryReport, memory_report
from roll.pipeline.preflight import choices, machine_report
from roll.pipeline.spec import PipelineSpec, pipeline_of
from roll.utils.imports import add_folder, import_all
from roll.utils.paths import look_at
from roll.utils.text import show, visible

EXIT_OK, EXIT_FAILED, EXIT_BAD_CONFIG, EXIT_INTERRUPTED = 0, 1, 2, 130


def main(pipeline: str = "rlvr", argv: Sequence[str] | None = None, script: str | None = None) -> int:
    """Runs one pipeline, a built-in name or `package.module:SPEC`, from command-line arguments and returns the exit
    code: 0 done, 1 the run failed, 2 the configuration, its plan or this machine cannot work, 128 + its number a
    signal. Code beside the YAML can be imported."""
    arguments, overrides = _parser(pipeline).parse_known_args(argv)
    try:
        directory, name = find_yaml(arguments.config_path, arguments.config_name or "", script)
        spec = pipeline_of(pipeline)
        loaded = load(spec, directory, name, overrides)
        config, plan = loaded.config, loaded.plan
        _say(describe(config, plan, spec.batch_rows(config, plan)))
        memory = memory_report(config, plan)
        if memory.text and (arguments.dry_run or memory.knows_gpus):
            _say(memory.text)
        for warning in (*loaded.warnings, *memory.warnings):
            _say(f"Warning: {warning}")
        if memory.problems:
            raise ConfigError(*(problem.text for problem in memory.problems))
        if arguments.dry_run:
            return _dry_run(spec, loaded, memory)
        _refuse(spec, loaded, memory)
        return int(spec.make_run(config, plan).run())
    except ConfigError as error:
        _complain("The run cannot start:", error.problems)
        return EXIT_BAD_CONFIG
    except RollError as error:
        _complain(f"The run failed ({type(error).__name__}):", [str(error)])
        return EXIT_FAILED
    except KeyboardInterrupt:
        _complain("Interrupted.", [])
        return EXIT_INTERRUPTED


def _parser(pipeline: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=f"Runs the {pipeline} pipeline.",
        epilog="Further arguments are overrides: key=value with a dotted key, such as "
        "actor_train.training_args.learning_rate=1e-6. All keys: docs/config_reference.md.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--config_path",
        "--config-path",
        default=".",
        help="folder of the YAML: absolute, or relative to this script or the current folder. Default: the current one",
    )
    parser.add_argument("--config_name", "--config-name", default=None, help="name of the YAML, without .yaml")
    parser.add_argument(
        "--dry_run",
        "--dry-run",
        action="store_true",
        help="check, print the plan and stop; needs no GPU, model or data",
    )
    return parser


def find_yaml(config_path: str, config_name: str, script: str | None = None) -> tuple[Path, str]:
    """The directory and the name of a YAML; code beside it can be imported from now on. Raises ConfigError that says
    where was looked, and what is there."""
    folder, name = _place(config_path, config_name)
    directory = _directory(folder, name, script)
    add_folder(directory)
    if not name:
        raise ConfigError(
            f"--config_name is missing. There: {', '.join(yaml_names(directory)) or 'no YAML'} in {directory}."
        )
    return directory, name


def _place(config_path: str, config_name: str) -> tuple[str, str]:
    """Folder and name of the YAML. A name may have a folder before it.

    Example: _place("examples", "tiny-sort/tiny_sort") == ("examples/tiny-sort", "tiny_sort")
    """
    folder, slash, name = config_name.rpartition("/")
    return (os.path.join(config_path, folder or slash), name) if slash else (config_path, config_name)


def _directory(config_path: str, name: str, script: str | None) -> Path:
    """The directory of the YAML: of those that `config_path` may mean the first that has one of this name, or exists.
    Relative to the script comes before the current folder, but `.` is the current one. Raises ConfigError that names
    the places looked at."""
    bases = [*([Path(script).resolve().parent] if script else []), Path.cwd()]
    written = look_at(config_path)
    given = written.path
    if given == Path():
        bases.reverse()
    looks = [look_at(base / given) for base in bases]
    there = list(dict.fromkeys(look.path.resolve() for look in looks if look.is_directory))
    if not there:
        if unclear := [look.why for look in (written, *looks) if look.kind in ("hidden", "impossible")]:
            raise ConfigError(f"--config_path {show(config_path)}: {unclear[0]}.")
        if any(look.is_file for look in looks):
            raise ConfigError(f"--config_path {config_path} is a file: name its folder, and the YAML in --config_name.")
        looked = " and ".join(dict.fromkeys(str(look.path) for look in looks))
        raise ConfigError(f"--config_path {config_path}: there is no such directory. Looked at {looked}.")
    file = f"{name.removesuffix('.yaml').removesuffix('.yml')}.yaml"
    having = [place for place in there if look_at(place / file).is_file]
    if len(having) > 1:
        _say(f"--config_path {config_path}: {file} is also in {having[1]}; the one in {having[0]} is meant.")
    return (having or there)[0]


def _dry_run(spec: PipelineSpec, loaded: Loaded, memory: MemoryReport) -> int:
    report = machine_report(loaded.config)
    found = (*report.problems, *memory.machine_problems, *spec.findings(spec.machine_problems, Problem, loaded.config))
    for problem in together(str(problem) for problem in found):
        _say(f"Warning, a real run stops here: {problem}")
    for line in spec.findings(spec.reports, str, loaded.config):
        _say(line)
    for reason in report.unchecked:
        _say(f"Not checked: {reason}")
    _say(f"Not checked in a dry run: {spec.unchecked}.")
    _say("The plan works.")
    return EXIT_OK


def _refuse(spec: PipelineSpec, loaded: Loaded, memory: MemoryReport) -> None:
    """Raises ConfigError with everything that this machine or the data say against the run."""
    problems = [problem.text for problem in (*machine_report(loaded.config).problems, *memory.machine_problems)]
    if not problems:
        try:
            import_all(loaded.config.external_lib)
        except ImportError as error:
            raise ConfigError(f"external_lib: {error}.") from error
    problems += [problem.text for choice in choices(loaded.config) for problem in class_problems(choice)]
    problems += map(str, spec.findings(spec.data_problems, (Problem, str), loaded.config))
    if problems:
        raise ConfigError(*together(problems))


def _say(text: str) -> None:
    try:
        print(visible(text), flush=True)
    except BrokenPipeError:  # a reader that has seen enough, such as head, does not end the run
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _complain(title: str, problems: Sequence[str]) -> None:
    print(title, *(f"  - {visible(problem)}" for problem in problems), sep="\n", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
