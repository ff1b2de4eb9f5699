"""How much of a model is trained."""

from roll.configs.memory.model_shape import ModelShape, Weight


def is_frozen(weight: Weight, prefixes: str | None) -> bool:
    """True for a weight that model_args.freeze_module_prefix names: commas between the beginnings of names."""
    names = (part.strip().replace("block_sparse_moe", "mlp") for part in (prefixes or "").split(","))
    return any(name and weight.name.startswith(name) for name in names)


def frozen_elements(shape: ModelShape, prefixes: str | None) -> int:
    return sum(weight.num_elements for weight in shape.weights if is_frozen(weight, prefixes))
