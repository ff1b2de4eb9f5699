"""Models by id on ModelScope, a hub that no library below knows."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from roll.configs.base import Settings
from roll.configs.sections.model import MODELSCOPE, ModelArgs
from roll.errors import ConfigError, describe
from roll.utils.files import is_hub_id

INSTALL = "pip install modelscope"


def is_on_modelscope(args: ModelArgs) -> bool:
    return _is_there(args, args.model_name_or_path)


def local_model(args: ModelArgs) -> ModelArgs:
    """The same with directories for model and tokenizer that are named by ids of ModelScope: they are brought into the
    cache of this machine unless they are there. Raises ConfigError where that fails."""
    names = {"model_name_or_path": args.model_name_or_path, "tokenizer_path": args.tokenizer_path}
    directories = {key: _directory(name) for key, name in names.items() if name is not None and _is_there(args, name)}
    return args.model_copy(update=directories) if directories else args


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


# Models of the Hugging Face hub: looked up once, by the driver, so that workers load from a directory.

logger = logging.getLogger(__name__)
S = TypeVar("S", bound=Settings)
NOT_LOADED = ["*.gguf", "*.onnx", "*.h5", "*.msgpack", "*.ot", "*.tflite", "*.pth", "onnx/*", "original/*"]
MODEL_KEYS = ("model_name_or_path", "tokenizer_path")
TORCH_FILES = ["*.bin", "*.pt"]


def fetch_models(names: Iterable[str]) -> dict[str, str]:
    """The directory of each hub id among `names`, in the hub's cache. Raises ConfigError where the hub cannot be
    reached and the cache does not have it."""
    return {name: _fetch(name) for name in dict.fromkeys(names) if is_hub_id(name)}


def _fetch(name: str) -> str:
    from huggingface_hub import HfApi, snapshot_download

    logger.info("looking for %s in the cache of the Hugging Face hub, and at the hub", name)
    try:
        try:
            files = HfApi().list_repo_files(name)
        except Exception:  # no network, or told to ask nobody: the cache decides
            return snapshot_download(name, local_files_only=True)
        has_safetensors = any(file.endswith(".safetensors") for file in files)
        return snapshot_download(name, ignore_patterns=[*NOT_LOADED, *(TORCH_FILES if has_safetensors else [])])
    except Exception as error:
        raise ConfigError(
            f"{name} is not a directory on this machine, so it was taken for an id of the hub, and cannot be loaded "
            f"from there: {describe(error)}. If the hub cannot be reached, fetch the model elsewhere (hf download "
            f"{name} --local-dir ...) and give that directory; or correct the name"
        ) from error


def with_directories(settings: S, directories: Mapping[str, str]) -> S:
    """The same settings with the directories of these models, and of their tokenizers, in all sections."""
    old = {key: settings.value(key) for key in type(settings).model_fields}
    if isinstance(settings, ModelArgs):
        new = {key: directories.get(str(old[key]), old[key]) for key in MODEL_KEYS}
    else:
        new = {key: _replaced(value, directories) for key, value in old.items()}
    # what stays as it is, is not given either
    return settings.model_copy(update={key: value for key, value in new.items() if value != old[key]})


def _replaced(value: Any, directories: Mapping[str, str]) -> Any:
    if isinstance(value, Settings):
        return with_directories(value, directories)
    if isinstance(value, dict):
        return {key: _replaced(child, directories) for key, child in value.items()}
    if isinstance(value, tuple):
        return tuple(_replaced(child, directories) for child in value)
    return value
