"""Heads that predict further tokens (multi-token prediction), which a model's files may hold. transformers leaves them
out when it loads a model; they are not trained, and go with it as they are."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Iterator

import torch
from safetensors import safe_open
from transformers import AutoConfig

from roll.models.tensor_files import tensor_files

logger = logging.getLogger(__name__)
_NAMED = re.compile(r"^(model\.)?(language_model\.)?mtp(_layers)?\.")
_LAYER = re.compile(r"^model\.(?:language_model\.)?layers\.(\d+)\.")


def is_of_prediction_head(name: str, num_layers: int) -> bool:
    """Of a tensor in a model's files: heads are named so, or are layers behind the last.

    Example: mtp.fc.weight; model.layers.61.eh_proj.weight of a model with layers 0 to 60.
    """
    layer = _LAYER.match(name)
    return _NAMED.match(name) is not None or (layer is not None and int(layer.group(1)) >= num_layers)


def prediction_heads(model: str) -> Iterator[tuple[str, torch.Tensor]]:
    """Those in the safetensors of a model directory or hub id, by name. Its own config.json counts the layers: settings
    of a run may ask for fewer."""
    text = AutoConfig.from_pretrained(model).get_text_config()
    num_layers = getattr(text, "num_hidden_layers", sys.maxsize)
    kept = {name: file for name, file in tensor_files(model).items() if is_of_prediction_head(name, num_layers)}
    if kept:
        logger.info("%s: %d tensors of multi-token prediction heads are saved as they were", model, len(kept))
    for path in sorted(set(kept.values())):
        with safe_open(path, framework="pt") as file:
            for name in (name for name, place in kept.items() if place == path):
                yield name, file.get_tensor(name)
