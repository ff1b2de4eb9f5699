"""What this machine has of a model: its config.json, in a directory or in the hub's cache. Nothing is downloaded."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from roll.configs.sections.model import ModelArgs
from roll.models.hub import is_on_modelscope
from roll.utils.files import look_at
from roll.utils.hub import is_hub_id


def read_model_config(args: ModelArgs) -> tuple[Mapping[str, Any] | None, str]:
    """config.json of a role's model with its `model_config_kwargs`, or None and the reason."""
    if is_on_modelscope(args):
        return None, f"{args.model_name_or_path} is an id of ModelScope"
    content, why_not = _read(args.model_name_or_path)
    return (None, why_not) if content is None else ({**content, **args.model_config_kwargs}, "")


def _read(name: str | None) -> tuple[Mapping[str, Any] | None, str]:
    file = (_cached(name) if name is not None and is_hub_id(name) else None) or Path(name or "", "config.json")
    look = look_at(file)
    if not look.is_file:
        return None, look.why if look.kind == "hidden" else f"no config.json of {name} on this machine"
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        return None, f"{file} cannot be read: {error}"
    return (content, "") if isinstance(content, dict) else (None, f"{file} holds no JSON object")


def _cached(hub_id: str) -> Path | None:
    """Path of config.json in the hub's cache, of the last known version of `main`; None if it is not there."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        found = try_to_load_from_cache(hub_id, "config.json")
    except (HFValidationError, OSError):
        return None
    return Path(found) if isinstance(found, str) else None
