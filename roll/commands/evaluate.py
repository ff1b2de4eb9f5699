"""`roll eval`: a model, or the policy of a checkpoint, on the validation and the evaluation sets of a YAML."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from roll.commands.run import EXIT_OK, start_yaml
from roll.errors import ConfigError

USAGE = """roll eval CONFIG.yaml [--checkpoint DIR] [--pipeline NAME] [key=value ...]

Runs the YAML with mode: bench: its validation and eval_sets are run with the model of actor_infer, or with the policy
of a checkpoint (a directory step_000050, or `true` for the newest of the run). Nothing is trained. The figures are
those that the run itself would report for these weights; they go to <output_dir>/bench. docs/modes.md."""


def run(argv: Sequence[str]) -> list[str]:
    """Ends the program with the exit code of the run where that is not 0. Raises ConfigError for words that are no
    call."""
    options, overrides = _parser().parse_known_args(argv)
    if unknown := [word for word in overrides if word.startswith("-") or "=" not in word]:
        raise ConfigError(f"{', '.join(unknown)}: unknown option; see roll eval --help.")
    taken = ["mode", *(["resume_from_checkpoint"] if options.checkpoint is not None else [])]
    if twice := [word for word in overrides if word.partition("=")[0].lstrip("+") in taken]:
        raise ConfigError(f"{', '.join(twice)}: roll eval sets {' and '.join(taken)} itself. Leave it out.")
    if options.checkpoint == "":
        raise ConfigError("--checkpoint is empty: name a directory step_000050, or true for the newest of the run.")
    bench_keys = ["mode=bench", *([f"resume_from_checkpoint={options.checkpoint}"] if options.checkpoint else [])]
    code = start_yaml(options.config, [*overrides, *bench_keys], options.dry_run, options.elsewhere, options.pipeline)
    if code != EXIT_OK:
        raise SystemExit(code)
    return []


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="roll eval", usage=USAGE, allow_abbrev=False)
    parser.add_argument("config", help="the YAML of the run")
    parser.add_argument("--checkpoint", help="a directory step_000050; true: the newest one of the run")
    kind = "rlvr, agentic, or package.module:SPEC. Default: the one whose keys these are"
    parser.add_argument("--pipeline", help=kind)
    parser.add_argument("--dry_run", "--dry-run", action="store_true", help="check, print the plan and stop")
    parser.add_argument(
        "--elsewhere", action="store_true", help="plan for another machine: files and logins are not checked here"
    )
    return parser
