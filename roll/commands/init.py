"""`roll init`: a short YAML for a run of one's own."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

import yaml

from roll.commands.options import INIT_REWARD, init_parser
from roll.commands.run import start_yaml
from roll.configs.sections.data import DataArgs
from roll.datasets.loader import DataFile
from roll.datasets.sources import data_sources, task_of
from roll.errors import ConfigError
from roll.run.start.machine import this_machine
from roll.utils.files import write_whole
from roll.utils.logging import say

# Which columns of a file hold prompts, reference answers and tags.

PROMPTS = ("prompt", "question", "problem", "instruction", "query", "input")
MESSAGES = ("messages", "conversations", "prompt")
TRUTHS = ("ground_truth", "answer", "solution", "target", "label", "reference", "reward_model.ground_truth")


@dataclass(frozen=True)
class Columns:
    """Names of columns; empty: none, or as they are called by default. `tags`: those of all rows."""

    prompt: str = ""
    messages: str = ""
    truth: str = ""
    tags: tuple[str, ...] = ()


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
    rows = (row for file in files for row in file.rows())
    if (first := next(rows, None)) is None:
        raise ConfigError(f"--data: {data} holds no row.")
    found = (row.values.get("tag") for row in chain([first], rows))
    tags = dict.fromkeys(str(tag) for tag in found if tag is not None)
    truth = truth or next((name for name in TRUTHS if first.value(name) is not None), "")
    messages = next((name for name in MESSAGES if isinstance(first.values.get(name), list)), "")
    prompt = prompt or messages or next((name for name in PROMPTS if isinstance(first.values.get(name), str)), "")
    if not prompt:
        names = ", ".join(map(str, first.values))
        raise ConfigError(
            f"--data: none of the columns of {data} is known to hold the prompt: {names}. Name it with --prompt COLUMN."
        )
    is_list = isinstance(first.value(prompt), list)
    return Columns("" if is_list else prompt, prompt if is_list else "", truth, tuple(tags))


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


def run(argv: Sequence[str]) -> int:
    """The exit code of the plan, which says what is wrong with the answers. Raises ConfigError for rows of which it
    does not know the columns, and for a file that is there."""
    options = init_parser().parse_args(argv)
    path = Path(options.file)
    if path.suffix != ".yaml":  # the only ending that Hydra reads
        raise ConfigError(f"{options.file}: the name of a YAML ends in .yaml.")
    if path.exists() and not options.force:
        raise ConfigError(f"{options.file} already exists. Choose another name, or replace it with --force.")
    if bool(options.data) == bool(options.env):
        raise ConfigError("Give one of --data, for prompts, and --env, for an agent. See roll init --help.")
    if options.env and options.reward:
        raise ConfigError("--reward: an environment computes its own rewards. Leave it out.")
    here = this_machine().num_gpus
    reward = options.reward or (INIT_REWARD if task_of(options.data or "") is None else "reasoning_gym")
    columns = columns_of(options.data, options.prompt, options.ground_truth) if options.data else Columns()
    gpus = here if options.gpus is None else options.gpus
    wishes = InitOptions(options.model, options.data or "", options.env or "", reward, gpus, here, columns)
    try:
        write_whole(path, yaml_of(wishes, options.file))
    except OSError as error:
        raise ConfigError(f"{options.file} cannot be written: {error.strerror}.") from error
    say(f"{options.file} is written. Its plan:\n")
    return start_yaml(options.file, (), is_plan=True)
