"""Finds the safetensors file of each tensor of a Hugging Face model."""

from __future__ import annotations

import json
from pathlib import Path

from safetensors import safe_open
from transformers.utils.hub import cached_file

WHOLE, INDEX = "model.safetensors", "model.safetensors.index.json"


def tensor_files(model: str) -> dict[str, str]:
    """Path by name, of a model directory or hub id; nothing where it has other files than safetensors."""
    whole = cached_file(model, WHOLE, _raise_exceptions_for_missing_entries=False)
    if whole is not None:
        with safe_open(whole, framework="pt") as file:
            return dict.fromkeys(file.keys(), whole)
    index = cached_file(model, INDEX, _raise_exceptions_for_missing_entries=False)
    if index is None:
        return {}
    names: dict[str, str] = json.loads(Path(index).read_text(encoding="utf-8"))["weight_map"]
    paths = {file: cached_file(model, file) for file in set(names.values())}
    return {name: str(paths[file]) for name, file in names.items()}
