"""`data_args`: which rows, and how a row becomes a prompt."""

import os
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from roll.configs.base import LARGEST, Settings, setting


def _as_tuple(value: object) -> object:
    if value is None:
        return ()
    return (value,) if isinstance(value, str) else value


def split_text(value: object) -> object:
    """The parts of a list that is written as one text. Example: "moe, layernorm" -> ("moe", "layernorm")."""
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    return _as_tuple(value)


Strings = Annotated[tuple[str, ...], BeforeValidator(_as_tuple)]
"""Texts that may hold commas themselves: one alone needs no list."""
Names = Annotated[tuple[str, ...], BeforeValidator(split_text)]
Numbers = Annotated[tuple[Annotated[int, Field(ge=0, le=LARGEST)], ...], BeforeValidator(split_text)]
"""Lists that may also be written as one text with commas; numbers from 0 on."""
Truncation = Literal["error", "left", "right", "middle", "drop"]
Place = Annotated[str, AfterValidator(os.path.expanduser)]
"""A path, or the name of a model: what ~ means is settled here, for libraries and workers that would not know it."""


class OperatorConfig(Settings):
    """One of `data_args.operators`: its name and its arguments. A name alone stands for one without arguments."""

    name: str = setting(
        ...,
        "deduplicate, length, pass_rate or contamination; package.module:function of your own; "
        "data_juicer:NAME of Data-Juicer's. docs/data.md.",
        min_length=1,
    )
    args: dict[str, Any] = setting({}, "Its arguments by name.")


def operator_entries(value: object) -> object:
    """Operators as mappings, however they are written. Example: "length" -> [{"name": "length"}]."""
    entries = [value] if isinstance(value, str | Mapping) else value
    if not isinstance(entries, list | tuple):
        return value
    return [{"name": each} if isinstance(each, str) else each for each in entries]


Operators = Annotated[tuple[OperatorConfig, ...], BeforeValidator(operator_entries)]


class DataArgs(Settings):
    """`data_args` of actor_train (training rows) and of validation."""

    file_name: Strings = setting(
        (),
        "One or several: a .json, .jsonl, .csv or .parquet file, a folder of such, a pattern (data/**/*.jsonl), an "
        "address that fsspec reads (s3://, https://, hf:// ...), owner/name of a data set of the Hugging Face hub, "
        "which takes the package datasets, or a task of reasoning-gym (reasoning_gym:chain_sum).",
    )
    split: str | None = setting(
        None,
        "Split of a data set of the hub, as the package takes it (test, train[:100]). Default: train; validation "
        "must say. With it or subset, a folder is a data set too. Tasks of reasoning-gym have train and test, which "
        "share no question; validation takes test by default.",
        min_length=1,
    )
    generator: dict[str, Any] = setting(
        {},
        "Settings of the tasks of reasoning-gym in file_name, such as `{min_terms: 2, size: 2000}`; those of one task "
        "alone are a mapping under its name. `size` is the number of rows (500) and `seed` which they are (1).",
    )
    subset: str | None = setting(None, "Subset (configuration) of a data set of the hub.", min_length=1)
    dataset_type: Names = setting(
        (), "File format (json, jsonl, csv, parquet), one for all files or one each. Empty: by file name ending."
    )
    template: str = setting(
        "native",
        "`native` is the tokenizer's own chat template, `plain` no template at all; ROLL's names (qwen2_5, qwen3, "
        "native_nonthinking, qwen3_coder, qwen2-vl, chatml, empty, base, longCOT_qwen2.5, longcot_V3) are known; "
        "anything else is a Jinja template: the path of its file, or its text.",
    )
    template_kwargs: dict[str, Any] = setting(
        {},
        "What the chat template sees beside the messages, as it names it: `reasoning_effort: high` of gpt-oss, "
        "`thinking_budget` of others. The tokenizer's own templates and Jinja files read them.",
    )
    truncation: Truncation = setting(
        "error",
        "What happens to a prompt longer than prompt_length: stop the run, cut its beginning (left), its end (right) "
        "or its middle (middle, which keeps half of the length at either end), or leave the row out (drop). The counts "
        "are reported.",
    )
    prompt: str | None = setting(None, "Column with the prompt text. Default: `prompt`, when `messages` is not there.")
    messages: str | None = setting(None, "Column with chat messages (a list of role and content). Default: `messages`.")
    tools: str | None = setting(
        "tools",
        "Column with the tools that a row offers, if it has any: a list of JSON schemas, or its text. null: none.",
    )
    system_prompt: str | None = setting(
        None, "System prompt of rows that bring none, neither in their messages nor in a column of system_key."
    )
    image_key: str | None = setting(
        None,
        "Column with the pictures of a row, or an entry of one (`extra.images`), for vision models: one or a list of "
        "paths, addresses, base64 or bytes. Default: `images`, or `image`.",
        min_length=1,
    )
    image_folder: Place | None = setting(
        None, "Folder in which relative paths of pictures begin. Default: that of the data file."
    )
    image_min_pixels: int | None = setting(
        None, "Pictures with fewer pixels are enlarged. The larger of this and the model's own number counts.", ge=1
    )
    image_max_pixels: int | None = setting(
        None, "Pictures with more pixels are made smaller. The smaller of this and the model's own number counts.", ge=1
    )
    tag: str = setting("tag", "Column with the tag; rewards.<domain>.tag_included maps tags to domains.")
    id: str = setting(
        "id", "Column with the row's id. Rows without one are named by file and line, those that share one by both."
    )
    ground_truth: str = setting(
        "ground_truth",
        "Column with the reference answer, handed to the reward; column.name where a column holds mappings "
        "(reward_model.ground_truth, as verl's rows have it).",
    )
    domain_interleave_probs: dict[str, float] | None = setting(
        None,
        "Share of each domain in a step's prompts, in proportion to their sum; a domain without one gets none. "
        "None: as the domains occur in the data.",
    )
    shuffle: bool = setting(True, "Shuffle the rows anew in every epoch, seeded by `seed`.")
    drop_last: bool = setting(
        False,
        "Drop the rows at the end of an epoch that do not fill a step, as verl does. For a single domain.",
    )
    operators: Operators = setting(
        (),
        "Operators that select rows before the run, in this order: names, or mappings of name and args. docs/data.md.",
    )
