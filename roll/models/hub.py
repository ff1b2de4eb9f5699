"""Models by id on ModelScope, a hub that no library below knows."""

from __future__ import annotations

from roll.configs.model import MODELSCOPE, ModelArgs
from roll.errors import ConfigError, describe
from roll.utils.hub import is_hub_id

INSTALL = "pip install modelscope"


def is_on_modelscope(args: ModelArgs) -> bool:
    return _is_there(args, args.model_name_or_path)


def local_model(args: ModelArgs) -> ModelArgs:
    """The same with directories for model and tokenizer that are named by ids of ModelScope: they are brought into the
    cache of this machine unless they are there. Raises ConfigError where that fails."""
    names = {"model_name_or_path": args.model_name_or_path, "tokenizer_path": args.tokenizer_path}
    found = {key: _directory(name) for key, name in names.items() if name is not None and _is_there(args, name)}
    return args.model_copy(update=found) if found else args


def _is_there(args: ModelArgs, name: str | None) -> bool:
    return args.download_type == MODELSCOPE and name is not None and is_hub_id(name)


def _directory(name: str) -> str:
    try:
        from modelscope import snapshot_download  # type: ignore[import-not-found]
    except ImportError as error:
        raise ConfigError(
            f"model_download_type: {MODELSCOPE} needs the package modelscope, which cannot be imported: {error}. "
            f"Install it: {INSTALL}"
        ) from error
    try:
        return str(snapshot_download(name))
    except Exception as error:  # of the network, the hub and the disk
        raise ConfigError(
            f"model_download_type: {MODELSCOPE} has no {name} for this machine: {describe(error)}. Correct the id, or "
            "fetch the model elsewhere and give its directory."
        ) from error
