"""An entry of `stages`: what it says of itself, beside the keys that it changes."""

from typing import Annotated, Literal

from pydantic import AfterValidator

from roll.configs.base import Settings, setting
from roll.utils.text import show

LONGEST_STAGE_NAME = 60
AT_THE_START = "start"
"""In `models`: what the YAML names, not what an earlier stage learnt."""


def _stage_name(name: str) -> str:
    is_plain = name[:1].isalpha() and all(part.isalnum() for part in name.replace("-", "_").split("_"))
    if not (is_plain and name.isascii() and len(name) <= LONGEST_STAGE_NAME):
        raise ValueError(
            f"{show(name)} must be a letter followed by letters, digits, - and _, {LONGEST_STAGE_NAME} at most: it is "
            "the name of a folder"
        )
    if name == AT_THE_START:
        raise ValueError(f"{name} means the models that the YAML names; give the stage another name")
    return name


class StageConfig(Settings):
    """Keys of an entry of `stages` beside those that it changes."""

    name: Annotated[str, AfterValidator(_stage_name)] = setting(
        ..., "Name of the stage, and of its folder: <output_dir>/<number>-<name>."
    )
    pipeline: str | None = setting(
        None,
        "Kind of run, such as rlvr, agentic, sft or dpo, or package.module:SPEC. Default: the YAML's `pipeline`, the "
        "kind that the script starts, or the one whose keys these are.",
        min_length=1,
    )
    models: dict[str, str] = setting(
        {},
        "By role, where another model is wanted than the last that was learnt: the name of an earlier stage, or start "
        "for the one that the YAML names. Example: {reference: start}.",
    )
    optimizer: Literal["fresh", "kept"] = setting(
        "fresh",
        "kept: what learns goes on with the optimizer of the stage whose model it starts from, under a schedule of its "
        "own, and so does a critic if that stage had one. The same trainer; docs/stages.md.",
    )
