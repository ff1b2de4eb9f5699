"""`roll init`: a short YAML for a run of one's own."""

import argparse
import re
from collections.abc import Sequence
from dataclasses import dataclass
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
from roll.utils.logging import BAD_USE, say

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


# The YAML, with a comment where a person may want to change something.

_HEAD = """\
# Reinforcement learning: {model} {does}.
#   roll plan {file}               checks it and shows the plan; every key: docs/config_reference.md
#   roll run {file}                starts it
pretrain: {model} # a directory or a hub id

{devices}
max_steps: 100 # a step samples, scores and learns
save_steps: 50 # a checkpoint every N steps, and at the end
# {length}: of the longest {sample} in tokens; the plan shows what is chosen

"""
_DATA = """\
# num_return_sequences_in_group: 8 # responses to a prompt, compared with each other
actor_train:{on_cpu}
  data_args:
    file_name: {data}{columns}
  # training_args:
  #   learning_rate: 1.0e-6{engine}

rewards:
  {domain}: # {tag}
    reward: {reward} # a name of docs/rewards.md, or module:function of your own{others}

# validation: # rows that are not trained on, every eval_steps
#   data_args:
#     file_name: {held_out}
"""
_ENV = """\
custom_envs:
  {tag}:
    env_type: {env}
    # env_config: {{}} # arguments of the environment
    max_steps: 10 # turns of an episode

actor_train:{on_cpu}
  training_args:
    lr_scheduler_type: linear # learning_rate is 1e-6, with LoRA 1e-5{engine}
"""
_ONE_WORKER = "\n  world_size: 1 # one worker on the CPU"


def yaml_of(options: argparse.Namespace, gpus: int, here: int, columns: Columns) -> str:
    """The YAML for these words of `roll init`. `gpus`: how many the run takes, of those `here`."""
    devices = f"num_gpus_per_node: {gpus} # roles share them, and take turns" if gpus else ""
    if gpus and gpus == here:
        devices = "# All GPUs that the run sees are used; num_gpus_per_node: N takes fewer."
    elif not here and not gpus:
        devices = "# This machine has no GPU: each role has one worker on the CPU."
    on_cpu = _ONE_WORKER if here and not gpus else ""
    roles = {"on_cpu": on_cpu, "engine": f"\nactor_infer:{on_cpu}" if on_cpu else ""}
    head = {"model": _text(options.model), "file": options.file, "devices": devices}
    if options.env:
        head |= {"does": f"plays {options.env}", "length": "sequence_length", "sample": "episode"}
        tag = re.sub(r"\W+", "_", options.env.rpartition(":")[2]).strip("_") or "env"
        return _HEAD.format(**head) + _ENV.format(tag=tag, env=_text(options.env), **roles)
    head |= {"does": f"responds to the prompts of {options.data}", "length": "response_length", "sample": "response"}
    named = {"prompt": columns.prompt, "messages": columns.messages, "ground_truth": columns.truth}
    holding = (f"\n    {key}: {_text(name)}" for key, name in named.items() if name and name != key)
    is_task = task_of(options.data) is not None  # its split `test` is validated with
    domain, *others = columns.tags or ("task",)
    return _HEAD.format(**head) + _DATA.format(
        data=_text(options.data),
        columns="".join(holding),
        domain=_text(domain),
        tag="the tag of its rows" if columns.tags else "a name for the rows",
        reward=_text(options.reward or ("reasoning_gym" if is_task else INIT_REWARD)),
        others=f"\n    tag_included: [{', '.join(map(_text, others))}]" if others else "",
        held_out=_text(options.data) if is_task else "test.jsonl",
        **roles,
    )


def _text(value: str) -> str:
    """A text as YAML writes it, in quotes where they are needed."""
    return yaml.safe_dump(value, allow_unicode=True, width=10_000).removesuffix("...\n").strip()


def run(argv: Sequence[str]) -> int:
    """The exit code of the plan, which says what is wrong with the answers; then no file is left. Raises ConfigError
    for rows of which it does not know the columns, and for a file that is there."""
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
    columns = columns_of(options.data, options.prompt, options.ground_truth) if options.data else Columns()
    try:
        write_whole(path, yaml_of(options, here if options.gpus is None else options.gpus, here, columns))
    except OSError as error:
        raise ConfigError(f"{options.file} cannot be written: {error.strerror}.") from error
    say(f"{options.file} is written. Its plan:\n")
    code = start_yaml(options.file, (), is_plan=True)
    if code == BAD_USE and not options.force:  # so that the same call works once its words are right
        path.unlink()
        say(f"{options.file} is removed again.")
    return code
