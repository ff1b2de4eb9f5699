"""The command `roll`, also `python -m roll`: a word for each thing that it does."""

import argparse
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from roll.commands.options import spelled
from roll.configs.problems import did_you_mean
from roll.utils.imports import resolve
from roll.utils.logging import BAD_USE, FAILED, OK, masked_output, reported, say
from roll.utils.text import visible
from roll.utils.version import VERSION


@dataclass(frozen=True)
class Subcommand:
    """`function`, package.module:object, gets the words behind the name and gives the lines to show, which are shown
    as they come, or the exit code of what has said everything itself; ConfigError and RollError are told. `options`
    makes its parser, in a module that imports little; empty: the function's own module does."""

    help: str
    function: str
    options: str = ""


SUBCOMMANDS: Mapping[str, Subcommand] = {
    "init": Subcommand(
        "write a short YAML for your own run",
        "roll.commands.init:run",
        "roll.commands.options:init_parser",
    ),
    "run": Subcommand(
        "start a run of any kind, or several in stages",
        "roll.commands.run:run_command",
        "roll.commands.options:run_parser",
    ),
    "fork": Subcommand(
        "start a new run from a checkpoint of another, with other values of keys",
        "roll.commands.fork:run",
        "roll.commands.options:fork_parser",
    ),
    "why": Subcommand(
        "test what keeps a run from learning: take its steps again with one key changed",
        "roll.commands.why:run",
        "roll.commands.options:why_parser",
    ),
    "bisect": Subcommand(
        "name the first thing that differs between two runs",
        "roll.commands.bisect:run",
        "roll.commands.options:bisect_parser",
    ),
    "plan": Subcommand(
        "check a YAML and show its plan; nothing is started",
        "roll.commands.run:plan_command",
        "roll.commands.options:plan_parser",
    ),
    "schema": Subcommand("print the keys of a kind of run as a JSON schema, for editors", "roll.commands.schema:run"),
    "fit": Subcommand(
        "search the layout of a run that is fastest and fits in memory",
        "roll.simulate.forecast.fit:run",
        "roll.simulate.options:fit_parser",
    ),
    "simulate": Subcommand(
        "play a schedule on a virtual clock, without devices",
        "roll.simulate.command:run",
        "roll.simulate.options:parser",
    ),
    "data": Subcommand(
        "check FILE: show what its rows hold, and what is wrong with them",
        "roll.commands.data_check:run",
        "roll.commands.data_check:parser",
    ),
    "eval": Subcommand(
        "measure a model or a checkpoint on a YAML's evaluation sets",
        "roll.commands.evaluate:run",
        "roll.commands.options:eval_parser",
    ),
    "explain": Subcommand(
        "explain an algorithm: formula and settings",
        "roll.commands.explain:run",
        "roll.commands.options:explain_parser",
    ),
    "doctor": Subcommand(
        "check this machine for a run, and say what to do",
        "roll.doctor.command:run",
        "roll.doctor.command:doctor_parser",
    ),
    "audit": Subcommand(
        "try a run's rewards on made-up responses: which earn what only right ones should?",
        "roll.doctor.audit:run",
        "roll.doctor.command:audit_parser",
    ),
    "chat": Subcommand(
        "talk to a model, or to one that a run has trained",
        "roll.commands.chat:run",
        "roll.commands.chat:parser",
    ),
    "convert": Subcommand("convert Hugging Face models to Megatron checkpoints and back", "roll.commands.convert:main"),
    "report": Subcommand(
        "write one HTML file about runs, to look at offline",
        "roll.report.command:run",
        "roll.report.options:argument_parser",
    ),
    "check-env": Subcommand(
        "test an environment against its contract, with random actions",
        "roll.commands.check_env:main",
        "roll.commands.options:check_env_parser",
    ),
    "reproduce": Subcommand(
        "run a recipe of a real model, and compare its curve with the one measured",
        "roll.reproduce.command:run",
        "roll.reproduce.options:argument_parser",
    ),
    "studio": Subcommand(
        "show runs and rollouts and build configurations, in a browser",
        "roll.studio.command:run",
        "roll.studio.options:argument_parser",
    ),
    "import": Subcommand(
        "convert a configuration of verl, Trinity-RFT or an older ROLL to a YAML",
        "roll.importers.command:run",
        "roll.importers.options:argument_parser",
    ),
}
"""A new one is a line here."""


def main(argv: Sequence[str] | None = None) -> int:
    """0 done, 1 it failed, 2 the words or what they name cannot work, 130 Ctrl-C."""
    if "_ARGCOMPLETE" in os.environ:  # a shell asks
        complete: Any = resolve("roll.commands.completion:complete")
        complete()
    with masked_output():
        return _main(list(sys.argv[1:] if argv is None else argv))


def _main(arguments: list[str]) -> int:
    word = arguments[0] if arguments else ""
    try:
        return reported(lambda: _run(arguments), f"roll {word} cannot do this:", f"roll {word} failed:")
    except BrokenPipeError:  # who read has seen enough
        return FAILED


def _run(arguments: list[str]) -> int:
    if arguments[:1] in (["--version"], ["version"]):
        say(f"roll {VERSION}")
        return OK
    if arguments[:1] in (["-h"], ["--help"], ["help"]):
        say(_usage())
        return OK
    if not arguments or arguments[0] not in SUBCOMMANDS:
        word = (
            visible(f"roll has no command {arguments[0]}.{did_you_mean(arguments[0], SUBCOMMANDS)}\n")
            if arguments
            else ""
        )
        print(f"{word}{_usage()}", file=sys.stderr, flush=True)
        return BAD_USE
    command = SUBCOMMANDS[arguments[0]]
    if command.options and not {"-h", "--help"}.isdisjoint(arguments[1:]):
        say(parser_of(command).format_help().rstrip())
        return OK
    run = cast("Callable[[Sequence[str]], Iterable[str] | int]", resolve(command.function))
    done = run([spelled(word) for word in arguments[1:]])
    if isinstance(done, int):
        return done
    for line in done:
        say(line)
    return OK


def parser_of(command: Subcommand) -> argparse.ArgumentParser:
    """The parser that `options` names."""
    return cast("Callable[[], argparse.ArgumentParser]", resolve(command.options))()


def _usage() -> str:
    width = max(map(len, SUBCOMMANDS))
    lines = [f"  {name:<{width}}  {command.help}" for name, command in SUBCOMMANDS.items()]
    return "\n".join(["roll COMMAND ...   (run `roll COMMAND --help` for details)", *lines])


if __name__ == "__main__":
    sys.exit(main())
