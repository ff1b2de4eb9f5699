"""Heads that predict further tokens (multi-token prediction), which a model's files may hold. transformers leaves them
out when it loads a model; they are not trained, and go with it as they are."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors import safe_open
from transformers.utils.hub import cached_file

logger = logging.getLogger(__name__)
_WHOLE, _INDEX = "model.safetensors", "model.safetensors.index.json"
_NAMED = re.compile(r"^(model\.)?(language_model\.)?mtp(_layers)?\.")
_LAYER = re.compile(r"^model\.(?:language_model\.)?layers\.(\d+)\.")


def is_of_prediction_head(name: str, num_layers: int) -> bool:
    """Of a tensor in a model's files: heads are named so, or are layers behind the last.

    Example: mtp.fc.weight; model.layers.61.eh_proj.weight of a model with layers 0 to 60.
    """
    layer = _LAYER.match(name)
    return _NAMED.match(name) is not None or (layer is not None and int(layer.group(1)) >= num_layers)


def prediction_heads(model: str, num_layers: int) -> Iterator[tuple[str, torch.Tensor]]:
    """Those in the safetensors of a model directory or hub id, by name."""
    kept = {name: file for name, file in _files_of(model).items() if is_of_prediction_head(name, num_layers)}
    if kept:
        logger.info("%s: %d tensors of multi-token prediction heads are saved as they were", model, len(kept))
    for path in sorted(set(kept.values())):
        with safe_open(path, framework="pt") as file:
            for name in (name for name, place in kept.items() if place == path):
                yield name, file.get_tensor(name)


def _files_of(model: str) -> dict[str, str]:
    """The file of each tensor; nothing where a model has other files than safetensors."""
    whole = cached_file(model, _WHOLE, _raise_exceptions_for_missing_entries=False)
    if whole is not None:
        with safe_open(whole, framework="pt") as file:
            return dict.fromkeys(file.keys(), whole)
    index = cached_file(model, _INDEX, _raise_exceptions_for_missing_entries=False)
    if index is None:
        return {}
    names: dict[str, str] = json.loads(Path(index).read_text(encoding="utf-8"))["weight_map"]
    return {name: str(Path(index).parent / file) for name, file in names.items()}
