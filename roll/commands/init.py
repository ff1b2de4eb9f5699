"""`roll init`: a short YAML for a run of one's own, by a few questions."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from roll.commands.columns import Columns, columns_of
from roll.commands.run import start_yaml
from roll.commands.wishes import Wishes, yaml_of
from roll.configs.limits import MOST_DEVICES_PER_NODE
from roll.configs.problems import did_you_mean
from roll.envs.table import ENVIRONMENTS, gem_id
from roll.errors import ConfigError
from roll.rewards.base import REQUIRED
from roll.rewards.builtins import BUILTINS, PATHS
from roll.run.start.this_machine import this_machine
from roll.utils.files import look_at
from roll.utils.hub import is_hub_id
from roll.utils.imports import resolve
from roll.utils.output import say

T = TypeVar("T")
USAGE = """roll init [FILE.yaml] [--model MODEL] [--data FILE | --env ENVIRONMENT] [--reward REWARD] [--gpus N]
    [--prompt COLUMN] [--ground_truth COLUMN] [--force]

Writes a short commented YAML and shows its plan. What no option says is asked for; without a terminal --model and
--data or --env have to be given. Nothing is downloaded. docs/running.md."""
_FILE, _MODEL, _REWARD = "my_run.yaml", "Qwen/Qwen2.5-0.5B-Instruct", "math_rule"


def run(argv: Sequence[str]) -> int:
    """The exit code of the plan. Raises ConfigError for answers that cannot work, and for a file that is there."""
    options = _parser().parse_args(argv)
    path = Path(options.file)
    if path.suffix not in (".yaml", ".yml"):
        raise ConfigError(f"{options.file}: the name of a YAML ends in .yaml.")
    if not look_at(path.parent).is_directory:
        raise ConfigError(f"{options.file}: there is no folder {path.parent}.")
    if look_at(path).exists and not options.force:
        raise ConfigError(f"{options.file} is there already. Choose another name, or replace it with --force.")
    text = yaml_of(_wishes(options), options.file)
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{options.file} cannot be written: {error.strerror}.") from error
    say(f"{options.file} is written. Its plan:\n")
    return start_yaml(options.file, (), is_plan=True)


def _wishes(options: argparse.Namespace) -> Wishes:
    asks = sys.stdin.isatty() and sys.stdout.isatty()
    if options.data and options.env:
        raise ConfigError("--data is for prompts and --env for an agent: give one of them.")
    if not asks:
        missing = [] if options.model else ["--model"]
        missing += [] if options.data or options.env else ["--data, or --env"]
        if missing:
            raise ConfigError(f"There is no terminal to ask at: give {' and '.join(missing)}. See roll init --help.")

    def answer(given: str | None, question: str, default: str, read: Callable[[str], T]) -> T:
        """What an option says, or else the person, as often as it cannot be."""
        if given is not None or not asks:
            return read(default if given is None else given)
        while True:
            try:
                return read(_input(f"{question} [{default}]: " if default else f"{question}: ").strip() or default)
            except ConfigError as error:
                say("\n".join(error.problems))

    here = this_machine().num_gpus
    model = answer(options.model, "Model, a directory or a hub id", _MODEL, _model)
    data, env, columns = options.data, options.env or "", Columns()
    if not env:
        question = "Data: a file with prompts, or the name of an environment for an agent"

        def rows(name: str) -> tuple[str, str, Columns]:
            if options.data is None and name in ENVIRONMENTS:
                return "", name, Columns()
            return name, "", _columns(name, options)

        data, env, columns = answer(data, question, "", rows)
    env = _env(env) if env else ""
    reward = (
        ""
        if env
        else answer(
            options.reward,
            f"Reward: {', '.join(BUILTINS)}, or module:function",
            _REWARD,
            lambda name: _reward(name, columns),
        )
    )
    gpus = answer(options.gpus, "GPUs; 0 is the CPU", str(here), _count)
    if env and options.reward:
        raise ConfigError("--reward: an environment gives its rewards itself. Leave it out.")
    return Wishes(model, data, env, reward, gpus, here, columns)


def _input(question: str) -> str:
    try:
        return input(question)
    except EOFError:
        raise ConfigError("The answers ended before the questions did; nothing is written.") from None


def _model(name: str) -> str:
    if not name or any(mark in name for mark in ("\n", "${")):
        raise ConfigError("--model: give a directory or a hub id, such as Qwen/Qwen2.5-0.5B-Instruct.")
    folder = Path(name).expanduser()
    if not is_hub_id(name) and not look_at(folder).is_directory:
        raise ConfigError(
            f"--model: there is no model directory {name}. Correct the path, or give a hub id (owner/name)."
        )
    if not is_hub_id(name) and not look_at(folder / "config.json").is_file:
        raise ConfigError(f"--model: {name} holds no config.json, so it is no model directory.")
    return name


def _columns(name: str, options: argparse.Namespace) -> Columns:
    if not name:
        raise ConfigError("--data: name a file (.jsonl, .json, .csv, .parquet), or a data set of the hub (owner/name).")
    return columns_of(name, options.prompt, options.ground_truth)


def _env(name: str) -> str:
    if name in ENVIRONMENTS or ":" in name or gem_id(name) is not None:
        return name
    raise ConfigError(
        f"--env: there is no environment {name}.{did_you_mean(name, ENVIRONMENTS)} There are "
        f"{', '.join(ENVIRONMENTS)}, or your own package.module:Class."
    )


def _reward(name: str, columns: Columns) -> str:
    if ":" in name:
        return name
    if name in BUILTINS:
        compares = "ground_truth" in getattr(resolve(name, PATHS), REQUIRED, ())
        if compares and columns.names and not columns.truth:
            raise ConfigError(
                f"--reward: {name} compares with an answer, and no column of the first row is known to hold one: "
                f"{', '.join(columns.names)}. Name it with --ground_truth COLUMN, or choose another --reward."
            )
        return name
    raise ConfigError(
        f"--reward: there is no reward {name}.{did_you_mean(name, BUILTINS)} There are {', '.join(BUILTINS)}, or your "
        "own package.module:function."
    )


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) > MOST_DEVICES_PER_NODE:
        raise ConfigError(f"--gpus: {text} must be a number from 0 to {MOST_DEVICES_PER_NODE}.")
    return int(text)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="roll init", usage=USAGE, allow_abbrev=False)
    parser.add_argument("file", nargs="?", default=_FILE, metavar="FILE.yaml", help=f"default: {_FILE}")
    parser.add_argument("--model", help="a directory or a hub id")
    parser.add_argument("--data", metavar="FILE", help="prompts and reference answers: a file, or a hub data set")
    parser.add_argument("--env", metavar="ENVIRONMENT", help="an environment for an agent, in the place of data")
    parser.add_argument("--reward", help=f"a name of docs/rewards.md, or module:function; default: {_REWARD}")
    parser.add_argument("--gpus", metavar="N", help="how many the run takes; default: all of this machine, 0: the CPU")
    parser.add_argument("--prompt", default="", metavar="COLUMN", help="with the prompt; default: by its name")
    parser.add_argument("--ground_truth", default="", metavar="COLUMN", help="with the answer; default: by its name")
    parser.add_argument("--force", action="store_true", help="replace a file that is there")
    return parser
