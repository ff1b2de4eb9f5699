"""`roll init`: a short YAML for a run of one's own, by a few questions."""

import argparse
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

import yaml

from roll.commands.options import INIT_REWARD, init_parser
from roll.commands.run import start_yaml
from roll.configs.base import MOST_DEVICES_PER_NODE
from roll.configs.problems import did_you_mean
from roll.configs.sections.data import DataArgs
from roll.datasets.loader import DataFile
from roll.datasets.sources import data_sources, task_of
from roll.envs.table import ENVIRONMENTS, gem_id
from roll.errors import ConfigError
from roll.rewards.base import REQUIRED
from roll.rewards.config import BUILTINS, PATHS
from roll.run.start.machine import this_machine
from roll.utils.files import expanded, is_hub_id, path_info, write_whole
from roll.utils.imports import resolve
from roll.utils.logging import say

# Which columns of a file hold prompts, reference answers and tags.

PROMPTS = ("prompt", "question", "problem", "instruction", "query", "input")
MESSAGES = ("messages", "conversations", "prompt")
TRUTHS = ("ground_truth", "answer", "solution", "target", "label", "reference", "reward_model.ground_truth")


@dataclass(frozen=True)
class Columns:
    """Names of columns; empty: none, or as they are called by default. `tags`: those of all rows. `names`:
    all columns of the first row, none where the rows are not on this machine."""

    prompt: str = ""
    messages: str = ""
    truth: str = ""
    tags: tuple[str, ...] = ()
    names: tuple[str, ...] = field(default=(), compare=False)


def columns_of(data: str, prompt: str = "", truth: str = "") -> Columns:
    """The columns of a file of this machine, by the names that are usual; of what is elsewhere nothing is known.
    `prompt` and `truth` are given. Raises ConfigError for a file that is missing, empty or cannot be read, and where no
    column is known to hold the prompt."""
    sources, problems = data_sources(DataArgs(file_name=(data,)), "--data", reach=False)
    if problems:
        raise ConfigError(*(f"{problem.replace('--data.file_name', '--data')}." for problem in problems))
    files = [source for source in sources if isinstance(source, DataFile)]
    if not files:
        return Columns(prompt, "", truth)
    rows = (row.values for file in files for row in file.rows())
    first = next(rows, None)
    if first is None:
        raise ConfigError(f"--data: {data} holds no row.")
    row_tags = (row.get("tag") for row in chain([first], rows))
    tags, names = tuple(dict.fromkeys(str(tag) for tag in row_tags if tag is not None)), tuple(map(str, first))
    for column, option in ((prompt, "--prompt"), (truth, "--ground_truth")):
        if column and _value(first, column) is None:
            raise ConfigError(f"{option}: {data} has no column {column}. It has {', '.join(map(str, first))}.")
    truth = truth or next((name for name in TRUTHS if _value(first, name) is not None), "")
    if not prompt:
        messages = next((name for name in MESSAGES if isinstance(first.get(name), list)), "")
        if messages:
            return Columns("", messages, truth, tags, names)
        prompt = next((name for name in PROMPTS if isinstance(first.get(name), str)), "")
    if not prompt:
        raise ConfigError(
            f"--data: none of the columns of {data} is known to hold the prompt: {', '.join(map(str, first))}. Name it "
            "with --prompt COLUMN."
        )
    is_list = isinstance(first.get(prompt), list)
    return Columns("" if is_list else prompt, prompt if is_list else "", truth, tags, names)


def _value(row: Mapping[str, Any], name: str) -> Any:
    """Value of a column, or of column.name if a column holds mappings."""
    if name in row:
        return row[name]
    column, _, inner = name.partition(".")
    held = row.get(column)
    return held.get(inner) if inner and isinstance(held, Mapping) else None


# What a new run is to be, and the YAML that says so.

_WIDTH = 34


@dataclass(frozen=True)
class InitOptions:
    """The answers. Either `data`, with a `reward` for its rows, or `env`. `gpus` is how many the run takes, `here` how
    many this machine has. `columns` are those of the data."""

    model: str
    data: str = ""
    env: str = ""
    reward: str = ""
    gpus: int = 0
    here: int = 0
    columns: Columns = field(default_factory=Columns)


def yaml_of(wishes: InitOptions, name: str) -> str:
    """The YAML of a file of this name, with a comment where a person may want to change something.

    Example: for a model, rows and a reward it has about 25 lines, half of them comments.
    """
    return "\n".join(_lines(wishes, name)) + "\n"


def _lines(wishes: InitOptions, name: str) -> Iterator[str]:
    what = f"plays {wishes.env}" if wishes.env else f"responds to the prompts of {wishes.data}"
    yield f"# Reinforcement learning: {wishes.model} {what}."
    yield f"#   roll plan {name}               checks it and shows the plan"
    yield f"#   roll plan {name} --defaults    lists every value that is not here"
    yield f"#   roll run {name}                starts it"
    yield _line(f"pretrain: {_text(wishes.model)}", "a directory or a hub id")
    yield ""
    yield from _device_lines(wishes)
    yield _line("max_steps: 100", "a step samples, scores and learns")
    yield _line("save_steps: 50", "a checkpoint every N steps, and at the end")
    if wishes.env:
        yield "# sequence_length: longest episode in tokens; the plan shows what is chosen"
    else:
        yield "# response_length: longest response in tokens; the plan shows what is chosen"
        yield _line("# num_return_sequences_in_group: 8", "responses to a prompt, compared with each other")
    yield ""
    yield from _env_lines(wishes) if wishes.env else _data_lines(wishes)


def _line(text: str, comment: str) -> str:
    return f"{text:<{_WIDTH}} # {comment}"


def _device_lines(wishes: InitOptions) -> Iterator[str]:
    if wishes.gpus and wishes.gpus == wishes.here:
        yield "# All GPUs that the run sees are used; num_gpus_per_node: N takes fewer."
    elif wishes.gpus:
        yield _line(f"num_gpus_per_node: {wishes.gpus}", "roles share them, and take turns")
    elif not wishes.here:
        yield "# This machine has no GPU: each role has one worker on the CPU."


def _named(columns: Columns) -> dict[str, str]:
    """Columns by the keys of data_args that they need."""
    named = {"prompt": columns.prompt, "messages": columns.messages, "ground_truth": columns.truth}
    return {key: column for key, column in named.items() if column and column != key}


def _data_lines(wishes: InitOptions) -> Iterator[str]:
    columns = wishes.columns
    yield from ["actor_train:", *_on_cpu(wishes), "  data_args:", f"    file_name: {_text(wishes.data)}"]
    for key, column in _named(columns).items():
        yield _line(f"    {key}: {_text(column)}", "the column that holds it")
    yield from ["  # training_args:", "  #   learning_rate: 1.0e-6"]
    yield from _engine_lines(wishes)
    domain, *others = columns.tags or ("task",)
    yield from ["", "rewards:"]
    yield _line(f"  {_text(domain)}:", "the tag of its rows" if columns.tags else "a name for the rows")
    yield _line(f"    reward: {_text(wishes.reward)}", "a name of docs/rewards.md, or module:function of your own")
    if others:
        yield f"    tag_included: [{', '.join(map(_text, others))}]"
    yield ""
    yield _line("# validation:", "rows that are not trained on, every eval_steps")
    is_task = task_of(wishes.data) is not None  # its split `test` is validated with
    yield from ["#   data_args:", f"#     file_name: {_text(wishes.data) if is_task else 'test.jsonl'}"]


def _env_lines(wishes: InitOptions) -> Iterator[str]:
    yield from ["custom_envs:", f"  {_tag(wishes.env)}:", f"    env_type: {_text(wishes.env)}"]
    yield _line("    # env_config: {}", "arguments of the environment")
    yield _line("    max_steps: 10", "turns of an episode")
    yield from ["", "actor_train:", *_on_cpu(wishes), "  training_args:"]
    yield _line("    lr_scheduler_type: linear", "learning_rate is 1e-6, with LoRA 1e-5")
    yield from _engine_lines(wishes)


def _on_cpu(wishes: InitOptions) -> list[str]:
    """Return the lines that keep a role on the CPU if the machine has GPUs that the run is not to use."""
    return [_line("  world_size: 1", "one worker on the CPU")] if wishes.here and not wishes.gpus else []


def _engine_lines(wishes: InitOptions) -> list[str]:
    return ["actor_infer:", *lines] if (lines := _on_cpu(wishes)) else []


def _tag(env: str) -> str:
    """Example: _tag("my_envs.maze:Maze") == "Maze"."""
    return re.sub(r"\W+", "_", env.rpartition(":")[2]).strip("_") or "env"


def _text(value: str) -> str:
    """A text as YAML writes it, in quotes where they are needed."""
    return yaml.safe_dump(value, allow_unicode=True, width=10_000).removesuffix("...\n").strip()


T = TypeVar("T")
_MODEL = "Qwen/Qwen2.5-0.5B-Instruct"


def run(argv: Sequence[str]) -> int:
    """The exit code of the plan. Raises ConfigError for answers that cannot work, and for a file that is there."""
    options = init_parser().parse_args(argv)
    path = Path(options.file)
    if path.suffix != ".yaml":  # the only ending that Hydra reads
        raise ConfigError(f"{options.file}: the name of a YAML ends in .yaml.")
    if not path_info(path.parent).is_directory:
        raise ConfigError(f"{options.file}: there is no folder {path.parent}.")
    if path_info(path).exists and not options.force:
        raise ConfigError(f"{options.file} already exists. Choose another name, or replace it with --force.")
    text = yaml_of(_wishes(options), options.file)
    try:
        write_whole(path, text)
    except OSError as error:
        raise ConfigError(f"{options.file} cannot be written: {error.strerror}.") from error
    say(f"{options.file} is written. Its plan:\n")
    return start_yaml(options.file, (), is_plan=True)


def _wishes(options: argparse.Namespace) -> InitOptions:
    asks = sys.stdin.isatty() and sys.stdout.isatty()
    if options.data and options.env:
        raise ConfigError("--data is for prompts and --env for an agent: give one of them.")
    if not asks:
        missing = [] if options.model else ["--model"]
        missing += [] if options.data or options.env else ["--data, or --env"]
        if missing:
            raise ConfigError(f"There is no terminal for questions: set {' and '.join(missing)}. See roll init --help.")

    def answer(value: str | None, question: str, default: str, read: Callable[[str], T]) -> T:
        """Return the value of an option, or else ask the person until the value is valid."""
        if value is not None or not asks:
            return read(default if value is None else value)
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
            INIT_REWARD if task_of(data) is None else "reasoning_gym",
            lambda name: _reward(name, columns),
        )
    )
    gpus = answer(options.gpus, "GPUs; 0 is the CPU", str(here), _count)
    if env and options.reward:
        raise ConfigError("--reward: an environment computes its own rewards. Leave it out.")
    return InitOptions(model, data, env, reward, gpus, here, columns)


def _input(question: str) -> str:
    try:
        return input(question)
    except EOFError:
        raise ConfigError("The input ended before the last question; nothing was written.") from None


def _model(name: str) -> str:
    if not name or any(mark in name for mark in ("\n", "${")):
        raise ConfigError("--model: give a directory, a GGUF file or a hub id, such as Qwen/Qwen2.5-0.5B-Instruct.")
    folder = expanded(name)
    if name.endswith(".gguf"):
        if not path_info(folder).is_file:
            raise ConfigError(f"--model: there is no file {name}. Correct the path.")
        return name
    if not is_hub_id(name) and not path_info(folder).is_directory:
        raise ConfigError(
            f"--model: there is no model directory {name}. Correct the path, or give a hub id (owner/name)."
        )
    if not is_hub_id(name) and not path_info(folder / "config.json").is_file:
        raise ConfigError(f"--model: {name} has no config.json, so it is not a model folder.")
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
