"""Number of parameters of a model, by its config.json or its name."""

import re

from roll.configs.sections.model import Head, ModelArgs
from roll.run.saving.model_files import read_model_config

_SIZE = re.compile(r"(?<![A-Za-z0-9.])(\d+(?:\.\d+)?)[bB](?![A-Za-z])")


def num_parameters(args: ModelArgs, head: Head = "lm") -> float | None:
    """Parameters of a model: exact by its config.json, or what its name says; None if neither tells.

    Example: Qwen/Qwen2.5-7B, of which this machine has no files, has 7e9.
    """
    model, _ = read_model_config(args)
    if model is not None:
        from roll.configs.memory.model_shape import model_shape

        shape, _ = model_shape(model, head)
        if shape is not None:
            return float(shape.num_elements)
    sizes = _SIZE.findall(args.model_name_or_path or "")
    return max(map(float, sizes)) * 1e9 if sizes else None
