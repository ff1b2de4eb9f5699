"""Model files on this machine: config.json, in a directory or in the hub's cache. Nothing is downloaded."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from roll.configs.sections.cluster import WorkerConfig
from roll.configs.sections.data import DataArgs
from roll.configs.sections.model import Head, ModelArgs
from roll.utils.files import is_hub_id, path_info
from roll.utils.imports import resolve

if TYPE_CHECKING:
    from roll.configs.tables.sight import VisionModel

_SIZE = re.compile(r"(?<![A-Za-z0-9.])(\d+(?:\.\d+)?)[bB](?![A-Za-z])")


def read_model_config(args: ModelArgs) -> tuple[Mapping[str, Any] | None, str]:
    """config.json of a role's model with its `model_config_kwargs`, or None and the reason."""
    if args.is_on_modelscope:
        return None, f"{args.model_name_or_path} is an id of ModelScope"
    content, why_not = _read(args.model_name_or_path)
    return (None, why_not) if content is None else ({**content, **args.model_config_kwargs}, "")


def num_parameters(args: ModelArgs, head: Head = "lm") -> float | None:
    """Parameters of a model: exact by its config.json, or what its name says (Qwen2.5-7B: 7e9); None if neither
    tells."""
    model, _ = read_model_config(args)
    if model is not None:
        model_shape: Any = resolve("roll.configs.memory.model_shape:model_shape")  # by path: no part of the kernel
        shape, _ = model_shape(model, head)
        if shape is not None:
            return float(shape.num_elements)
    sizes = _SIZE.findall(args.model_name_or_path or "")
    return max(map(float, sizes)) * 1e9 if sizes else None


def read_vision(args: ModelArgs, data: DataArgs | None = None) -> VisionModel | None:
    """How a role's model sees the pictures of some rows, as far as the files on this machine say; None for a model of
    text alone. One that is not here may see: the run knows."""
    name, model = args.model_name_or_path, read_model_config(args)[0]
    if model is not None and not isinstance(model.get("vision_config"), Mapping):
        return None
    from roll.datasets.sight import sight

    vision = sight().vision_model(model, lambda file: _read(name, file)[0] or {})
    limits = (None, None) if data is None else (data.image_min_pixels, data.image_max_pixels)
    return None if vision is None else vision.with_limits(*limits)


def known_sight(workers: Mapping[str, WorkerConfig]) -> dict[str, VisionModel | None]:
    """Return how the models of these roles see pictures, None: not at all; without those that are not here."""
    return {
        role: read_vision(worker.model_args)
        for role, worker in workers.items()
        if read_model_config(worker.model_args)[0] is not None
    }


def _read(name: str | None, what: str = "config.json") -> tuple[Mapping[str, Any] | None, str]:
    file = model_file(name or "", what) or Path(name or "", what)
    status = path_info(file)
    if not status.is_file:
        return None, status.why if status.kind == "hidden" else f"no {what} of {name} on this machine"
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        return None, f"{file} cannot be read: {error}"
    return (content, "") if isinstance(content, dict) else (None, f"{file} holds no JSON object")


def model_file(name: str, what: str) -> Path | None:
    """A file of a model on this machine, in its directory or in the hub's cache; None if there is none."""
    if is_hub_id(name):
        return _cached(name, what)
    status = path_info(Path(name, what))
    return status.path if status.is_file else None


def _cached(hub_id: str, what: str) -> Path | None:
    """Path of a file in the hub's cache, of the last known version of `main`; None if it is not there."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        cached = try_to_load_from_cache(hub_id, what)
    except (HFValidationError, OSError):
        return None
    return Path(cached) if isinstance(cached, str) else None
