"""Heads that predict further tokens (multi-token prediction), which a model's files may hold. transformers leaves them
out when it loads a model; where they are not trained, they go with it as they are."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Collection, Iterable, Iterator

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


def shared_tensors(num_layers: int, ties_head: bool) -> dict[str, str]:
    """Names under which files may hold the embedding and the head of a model once more, as parts of the head behind its
    last layer, and their names in the model."""
    at, embedding = f"model.layers.{num_layers}", "model.embed_tokens.weight"
    return {
        f"{at}.embed_tokens.weight": embedding,
        f"{at}.shared_head.head.weight": embedding if ties_head else "lm_head.weight",
    }


def with_shared(
    tensors: Iterable[tuple[str, torch.Tensor]], model: str, num_layers: int, ties_head: bool
) -> Iterator[tuple[str, torch.Tensor]]:
    """`tensors`, and behind the embedding and the head what else the files of `model` call them."""
    copies = {name: own for name, own in shared_tensors(num_layers, ties_head).items() if name in tensor_files(model)}
    for name, tensor in tensors:
        yield name, tensor
        yield from ((copy, tensor) for copy, own in copies.items() if own == name)


def prediction_heads(model: str, but: Collection[str] = ()) -> Iterator[tuple[str, torch.Tensor]]:
    """Those in the safetensors of a model directory or hub id, by name, without those `but`. Its own config.json counts
    the layers: settings of a run may ask for fewer."""
    text = AutoConfig.from_pretrained(model).get_text_config()
    num_layers = getattr(text, "num_hidden_layers", sys.maxsize)
    kept = {
        name: file
        for name, file in tensor_files(model).items()
        if is_of_prediction_head(name, num_layers) and name not in but
    }
    if kept:
        logger.info("%s: %d tensors of multi-token prediction heads are saved as they were", model, len(kept))
    for path in sorted(set(kept.values())):
        with safe_open(path, framework="pt") as file:
            for name in (name for name, place in kept.items() if place == path):
                yield name, file.get_tensor(name)
