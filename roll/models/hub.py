"""Names of models that stand for something on a hub, and the hub that is not Hugging Face's."""

from __future__ import annotations

import re

from roll.configs.model import MODELSCOPE, ModelArgs
from roll.errors import ConfigError, describe
from roll.utils.paths import look_at

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?")
INSTALL = "pip install modelscope"


def is_hub_id(name: str) -> bool:
    """True for `name` or `owner/name` that is no path of this machine.

    Example: Qwen/Qwen2.5-7B is an id; ./model, /models/x and output/model (when output/ exists) are paths.
    """
    return HUB_ID.fullmatch(name) is not None and not look_at(name.partition("/")[0]).exists


def is_on_modelscope(args: ModelArgs) -> bool:
    name = args.model_name_or_path
    return args.download_type == MODELSCOPE and name is not None and is_hub_id(name)


def local_model(args: ModelArgs) -> ModelArgs:
    """The same with the model's directory where it names an id of ModelScope, which is brought into the cache of this
    machine unless it is there: no library below knows that hub. Raises ConfigError where that fails."""
    if not is_on_modelscope(args):
        return args
    name = args.model_name_or_path
    try:
        from modelscope import snapshot_download  # type: ignore[import-not-found]
    except ImportError as error:
        raise ConfigError(
            f"model_download_type: {MODELSCOPE} needs the package modelscope, which cannot be imported: {error}. "
            f"Install it: {INSTALL}"
        ) from error
    try:
        directory = snapshot_download(name)
    except Exception as error:  # of the network, the hub and the disk
        raise ConfigError(
            f"model_download_type: {MODELSCOPE} has no {name} for this machine: {describe(error)}. Correct the id, or "
            "fetch the model elsewhere and give its directory."
        ) from error
    return args.model_copy(update={"model_name_or_path": str(directory)})
