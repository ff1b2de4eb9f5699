"""Description of a model's vision, read from the files beside it."""

import json
from collections.abc import Mapping
from functools import partial
from typing import Any

from roll.configs.sections.model import ModelArgs
from roll.configs.tables.sight import VisionModel
from roll.datasets.sight import sight
from roll.models.tokenizer import model_file


def vision_of(args: ModelArgs) -> VisionModel | None:
    """Return the vision model of a role; None for a model of text alone, or of a family that is not in the table. The
    model is here, or can be fetched."""
    name = args.model_name_or_path
    model = _json(name, "config.json") if name else {}
    if name is None or not isinstance(model.get("vision_config"), Mapping):
        return None
    return sight().vision_model(model, partial(_json, name))


def _json(name: str, file: str) -> Mapping[str, Any]:
    """A file's contents; empty where the model has none."""
    path = model_file(name, file)
    return {} if path is None else json.loads(path.read_text(encoding="utf-8"))
