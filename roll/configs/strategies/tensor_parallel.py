"""`tensor_parallel_size` of the fsdp2 strategies: which models can be divided, and what does not go with it."""

from collections.abc import Iterator, Mapping
from typing import Any

from roll.configs.problems import Problem
from roll.configs.sections.training import EIGHT_BIT
from roll.configs.strategies.spec import Choice

PLANNED: tuple[str, ...] = (
    *("arcee", "cohere", "cohere2", "ernie4_5", "exaone4", "gemma", "gemma2", "gemma3_text", "glm", "glm4", "granite"),
    *("helium", "llama", "ministral", "mistral", "olmo2", "olmo3", "phi3", "qwen2", "qwen3", "smollm3", "starcoder2"),
)
"""Values of model_type whose plan in transformers was tried: tests/parity/strategies/test_tensor_parallel.py."""
_DIVIDED = ("num_attention_heads", "num_key_value_heads", "intermediate_size")
_EIGHT_BIT_OR_MUON = (EIGHT_BIT, "muon")


def refused_model(model_type: object) -> str:
    """Why a model cannot be divided, and what to do."""
    return (
        f"models of type {model_type} are not divided. Set it to 1, or use megatron_train and megatron_infer where "
        f"they know the model. Known here: {', '.join(PLANNED)}."
    )


def tensor_problems(choice: Choice, size: int, on_host: bool) -> Iterator[Problem]:
    """What else of the role's settings stands in the way of `tensor_parallel_size: size`. `on_host`: offload_policy."""
    if size == 1:
        return
    worker, name, key = choice.worker, choice.role.name, f"{choice.at}.tensor_parallel_size"
    args = worker.model_args
    found = {
        f"{name}.model_args.ulysses_size": args.ulysses_size > 1
        and "sequences are shared by ranks that have every layer whole. Use one of the two",
        f"{name}.model_args.lora_target": args.has_lora and "adapters are not divided. Set it to 1",
        f"{name}.model_args.enable_activation_offload": args.enable_activation_offload
        and "activations that are spread over ranks cannot wait in host memory. Use gradient checkpointing, or set it "
        "to 1",
        f"{name}.use_torch_compile": worker.use_torch_compile
        and "a model that is divided is not compiled. Use one of the two",
        f"{choice.at}.offload_policy": on_host
        and "what is in host memory cannot be exchanged. Use param_offload and optimizer_offload",
    }
    for other, why in found.items():
        if why:
            yield Problem(f"{key}: {size} with {other}: {why}.", (key, other))
    optim = worker.training_args.optim
    if choice.role.learns and optim in _EIGHT_BIT_OR_MUON:
        other = f"{name}.training_args.optim"
        yield Problem(
            f"{key}: {size} with {other}: {optim}, which takes whole matrices. Use adamw_torch.", (key, other)
        )


def tensor_model_problems(choice: Choice, model: Mapping[str, Any], size: int) -> Iterator[Problem]:
    """Checks tensor parallelism against the config.json of the model: its type must be known, and its sizes
    divisible."""
    if size == 1:
        return
    key, model_key = f"{choice.at}.tensor_parallel_size", f"{choice.role.name}.model_args.model_name_or_path"
    if model.get("model_type") not in PLANNED:
        yield Problem(f"{key}: {refused_model(model.get('model_type'))}", (key, model_key))
        return
    sizes = {name: model[name] for name in _DIVIDED if type(model.get(name)) is int}
    for name, number in sizes.items():
        if number % size:
            fitting = ", ".join(str(n) for n in range(1, number + 1) if all(each % n == 0 for each in sizes.values()))
            path = choice.worker.model_args.model_name_or_path
            text = f"{key}: {size} does not divide {name} {number} of {path}. Sizes that do: {fitting}."
            yield Problem(text, (key, model_key))
            return
