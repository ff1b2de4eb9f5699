"""Number of parameters of a model, by its config.json or its name."""

import re
from collections.abc import Mapping
from typing import Any

from roll.configs.checks.moe import EXPERTS
from roll.configs.memory.model_shape import model_shape
from roll.configs.sections.model import ModelArgs
from roll.configs.strategies.model_numbers import text_part
from roll.configs.tables.roles import Head
from roll.run.saving.model_files import read_model_config

_SIZE = re.compile(r"(?<![A-Za-z0-9.])(\d+(?:\.\d+)?)[bB](?![A-Za-z])")
_EXPERT_WIDTHS = ("moe_intermediate_size", "intermediate_size")


def num_parameters(args: ModelArgs, head: Head = "lm") -> float | None:
    """Parameters of a model: exact by its config.json, else about, or what its name says; None if nothing tells.

    Example: Qwen/Qwen2.5-7B, of which this machine has no files, has 7e9.
    """
    model, _ = read_model_config(args)
    if model is not None:
        shape, _ = model_shape(model, head)
        if shape is not None:
            return float(shape.num_elements)
        if (about := _about(model)) is not None:
            return about
    sizes = _SIZE.findall(args.model_name_or_path or "")
    return max(map(float, sizes)) * 1e9 if sizes else None


def _about(model: Mapping[str, Any]) -> float | None:
    """Estimate the parameters of a transformer of an unknown type: the embedding, and of each layer 4 x width^2 for
    attention (or what stands in its place), 8 x width^2 for a plain MLP, or three matrices for each expert."""
    model = text_part(model)
    width, vocab, layers = (model.get(key) for key in ("hidden_size", "vocab_size", "num_hidden_layers"))
    if type(layers) is not int or type(width) is not int or type(vocab) is not int:
        return None
    experts = next((count for key in EXPERTS if (count := model.get(key))), None)
    expert_width = next((value for key in _EXPERT_WIDTHS if (value := model.get(key))), None)
    mlp = 8 * width**2
    if type(experts) is int and type(expert_width) is int:
        mlp = 3 * experts * expert_width * width
    return float(layers * (4 * width**2 + mlp) + vocab * width)
