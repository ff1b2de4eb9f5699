"""What a new run is to be, and the YAML that says so."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

import yaml

from roll.commands.columns import Columns

_WIDTH = 34


@dataclass(frozen=True)
class Wishes:
    """The answers. Either `data`, with a `reward` for its rows, or `env`. `gpus` is how many the run takes, `here` how
    many this machine has. `columns` are those of the data."""

    model: str
    data: str = ""
    env: str = ""
    reward: str = ""
    gpus: int = 0
    here: int = 0
    columns: Columns = field(default_factory=Columns)


def yaml_of(wishes: Wishes, name: str) -> str:
    """The YAML of a file of this name, with a comment where a person may want to change something.

    Example: for a model, rows and a reward it has about 25 lines, half of them comments.
    """
    return "\n".join(_lines(wishes, name)) + "\n"


def _lines(wishes: Wishes, name: str) -> Iterator[str]:
    what = f"plays {wishes.env}" if wishes.env else f"answers the prompts of {wishes.data}"
    yield f"# Reinforcement learning: {wishes.model} {what}."
    yield f"#   roll plan {name}               checks it and shows the plan"
    yield f"#   roll plan {name} --defaults    lists every value that is not here"
    yield f"#   roll run {name}                starts it"
    yield _line(f"pretrain: {_text(wishes.model)}", "a directory or a hub id")
    yield ""
    yield from _device_lines(wishes)
    yield _line("max_steps: 100", "a step samples, scores and learns")
    yield _line("save_steps: 50", "a checkpoint every so many steps, and at the end")
    if wishes.env:
        yield "# sequence_length: longest episode in tokens; the plan shows what is chosen"
    else:
        yield "# response_length: longest response in tokens; the plan shows what is chosen"
        yield _line("# num_return_sequences_in_group: 8", "responses to a prompt, compared with each other")
    yield ""
    yield from _env_lines(wishes) if wishes.env else _data_lines(wishes)


def _line(text: str, comment: str) -> str:
    return f"{text:<{_WIDTH}} # {comment}"


def _device_lines(wishes: Wishes) -> Iterator[str]:
    if wishes.gpus and wishes.gpus == wishes.here:
        yield "# All GPUs that the run sees are used; num_gpus_per_node: N takes fewer."
    elif wishes.gpus:
        yield _line(f"num_gpus_per_node: {wishes.gpus}", "roles share them, and take turns")
    elif not wishes.here:
        yield "# This machine has no GPU: each role has one worker on the CPU."


def _data_lines(wishes: Wishes) -> Iterator[str]:
    columns = wishes.columns
    yield from ["actor_train:", *_on_cpu(wishes), "  data_args:", f"    file_name: {_text(wishes.data)}"]
    named = {"prompt": columns.prompt, "messages": columns.messages, "ground_truth": columns.truth}
    for key, column in named.items():
        if column and column != key:
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
    yield from ["#   data_args:", "#     file_name: test.jsonl"]


def _env_lines(wishes: Wishes) -> Iterator[str]:
    yield from ["custom_envs:", f"  {_tag(wishes.env)}:", f"    env_type: {_text(wishes.env)}"]
    yield _line("    # env_config: {}", "arguments of the environment")
    yield _line("    max_steps: 10", "turns of an episode")
    yield from ["", "actor_train:", *_on_cpu(wishes), "  training_args:"]
    yield _line("    lr_scheduler_type: linear", "learning_rate is 1e-6, with LoRA 1e-5")
    yield from _engine_lines(wishes)


def _on_cpu(wishes: Wishes) -> list[str]:
    """What a role on the CPU says where the machine has GPUs that the run is not to take."""
    return [_line("  world_size: 1", "one worker on the CPU")] if wishes.here and not wishes.gpus else []


def _engine_lines(wishes: Wishes) -> list[str]:
    return ["actor_infer:", *lines] if (lines := _on_cpu(wishes)) else []


def _tag(env: str) -> str:
    """Example: _tag("my_envs.maze:Maze") == "Maze"."""
    return re.sub(r"\W+", "_", env.rpartition(":")[2]).strip("_") or "env"


def _text(value: str) -> str:
    """A text as YAML writes it, in quotes where they are needed."""
    return yaml.safe_dump(value, allow_unicode=True, width=10_000).removesuffix("...\n").strip()
