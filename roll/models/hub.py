"""Models by id on ModelScope, a hub that no library below knows."""

import logging
import os
import threading
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

from roll.configs.base import Settings
from roll.configs.sections.model import MODELSCOPE, ModelArgs
from roll.errors import ConfigError, describe
from roll.utils.files import folder_hint, is_hub_id
from roll.utils.secrets import mask

INSTALL = "pip install modelscope"


def local_model(args: ModelArgs) -> ModelArgs:
    """The same with directories for model and tokenizer that are named by ids of ModelScope: they are brought into the
    cache of this machine unless they are there. Raises ConfigError where that fails."""
    names = {"model_name_or_path": args.model_name_or_path, "tokenizer_path": args.tokenizer_path}
    directories = {
        key: _directory(name) for key, name in names.items() if name is not None and args.is_of_modelscope(name)
    }
    return args.model_copy(update=directories) if directories else args


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


# Whether the Hugging Face hub has what a run names. It is asked before any library does: those try every file five
# times, one after the other.

ANSWER_S = 3.0
Kind = Literal["model", "dataset"]


def hub_problems(names: Mapping[str, Kind], loads: bool = False) -> dict[str, str]:
    """Return why hub ids cannot be loaded here. One can if it is in the cache, or if the hub says within 3 s that it
    has it.

    `loads`: this process loads them next. The hub is then asked about those in the cache too, and if it does not
    answer, the libraries of this process and of those that it starts are told not to ask it (HF_HUB_OFFLINE)."""
    from huggingface_hub import constants

    cached = {name for name, kind in names.items() if _is_cached(name, kind)}
    asked: dict[str, Kind] = {name: kind for name, kind in names.items() if loads or name not in cached}
    if not asked:
        return {}
    if constants.HF_HUB_OFFLINE:
        answers = dict.fromkeys(asked, "HF_HUB_OFFLINE is set, so the Hugging Face hub is not asked")
    else:
        answers, silent = _answers(asked)
        if loads and silent:
            os.environ["HF_HUB_OFFLINE"], constants.HF_HUB_OFFLINE = "1", True
    return {name: _text(name, asked[name], why) for name, why in answers.items() if why and name not in cached}


def _text(name: str, kind: Kind, why: str) -> str:
    fetch = f"hf download {name}{'' if kind == 'model' else ' --repo-type dataset'} --local-dir ..."
    return (
        f"{name} is not on this machine, and {why}. Correct the name, or fetch it where the hub can be reached "
        f"({fetch}) and name that folder.{folder_hint(name)}"
    )


def _is_cached(name: str, kind: Kind) -> bool:
    from huggingface_hub import constants
    from huggingface_hub.file_download import repo_folder_name

    folder = Path(constants.HF_HUB_CACHE, repo_folder_name(repo_id=name, repo_type=kind), "snapshots")
    return any(folder.glob("*/*"))


def _answers(names: Mapping[str, Kind]) -> tuple[dict[str, str], bool]:
    """Return for each id why the hub does not give it, in a few words, empty if it does; and whether the hub was
    silent. All are asked at once, in threads: no library limits the time that a name server takes."""
    from huggingface_hub import constants

    place, answers, silent = mask(constants.ENDPOINT), dict[str, str](), list[str]()

    def ask(name: str, kind: Kind) -> None:
        try:
            answers[name] = _head(name, kind)
        except Exception as error:  # whatever the network raises
            answers[name] = f"the Hugging Face hub ({place}) cannot be reached: {mask(describe(error))}"
            silent.append(name)

    threads = [threading.Thread(target=ask, args=pair, daemon=True) for pair in names.items()]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + ANSWER_S
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    late = dict.fromkeys(names, f"the Hugging Face hub ({place}) did not answer within {ANSWER_S:g} s")
    known = dict(answers)
    return late | known, bool(silent) or len(known) < len(names)


def _head(name: str, kind: Kind) -> str:
    from huggingface_hub import get_hf_file_metadata, hf_hub_url
    from huggingface_hub.errors import (
        EntryNotFoundError,
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        RepositoryNotFoundError,
    )

    try:
        get_hf_file_metadata(hf_hub_url(name, "config.json", repo_type=kind), timeout=ANSWER_S)
    except GatedRepoError:
        return "the hub gives it to accounts with access alone: ask for it on its page, and log in (hf auth login)"
    except (RepositoryNotFoundError, HFValidationError):
        return f"the Hugging Face hub has no {kind} of this name, or hides it from you"
    except EntryNotFoundError:
        pass  # an adapter, a tokenizer or a data set
    except HfHubHTTPError as error:
        return f"the Hugging Face hub answers with {error.response.status_code}"
    return ""


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
