"""LoRA: adapters that are trained instead of the weights. The one module that knows peft.

Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models" (arXiv 2106.09685): W becomes W + s B A, with B of r
columns and A of r rows. W is frozen; B starts at 0, so that a new adapter changes nothing.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from roll.configs.lora import PEFT, REFUSED_WORDS, other_form
from roll.configs.memory.trained import ALL_LINEAR
from roll.configs.model import ModelArgs
from roll.configs.roles import Head
from roll.errors import StrategyError

_ADAPTER = "default"  # peft's own name for the only one
_PARTS = (".base_layer.", f".modules_to_save.{_ADAPTER}.")
_ONE_WEIGHT = "embedding and head are one weight in this model (tie_word_embeddings)"
_TASKS: Mapping[Head, str] = {"lm": "CAUSAL_LM", "value": "TOKEN_CLS"}
Tensors = Callable[[str], torch.Tensor]


@dataclass(frozen=True)
class Exported:
    """A weight as a Hugging Face checkpoint has it, and the parameters of the trained module that make it. `adapter`:
    names of A and B, and s."""

    name: str
    weight: str
    adapter: tuple[str, str, float] | None = None

    @property
    def parameters(self) -> tuple[str, ...]:
        return (self.weight,) if self.adapter is None else (self.weight, *self.adapter[:2])

    def value(self, whole: Tensors, dtype: torch.dtype) -> torch.Tensor:
        """The weight with its adapter in it, added in fp32; `whole` gives the full tensor of a parameter. Without one
        that tensor itself, where the dtype is its own."""
        weight = whole(self.weight).detach()
        if self.adapter is None:
            return weight.to(dtype)
        a, b, scale = self.adapter
        low_rank = whole(b).detach().float() @ whole(a).detach().float()
        return torch.add(weight.float(), low_rank.to(weight.device), alpha=scale).to(dtype)


class Adapters:
    """Those of one model, and modules that are trained in full beside them."""

    def __init__(self, peft_model: Any):
        self._peft = peft_model
        self._dropouts = [module for name, module in peft_model.named_modules() if f".lora_dropout.{_ADAPTER}" in name]

    @contextmanager
    def off(self) -> Iterator[None]:
        """Inside, the model is the one that the adapters were put on, to the bit. peft would also take their
        requires_grad away, by which FSDP2 tells in its first pass what is trained."""
        trained = [parameter for parameter in self._peft.parameters() if parameter.requires_grad]
        self._peft.base_model.disable_adapter_layers()
        for parameter in trained:
            parameter.requires_grad_(True)
        try:
            yield
        finally:
            self._peft.base_model.enable_adapter_layers()

    @contextmanager
    def without_dropout(self) -> Iterator[None]:
        for dropout in self._dropouts:
            dropout.eval()
        try:
            yield
        finally:
            for dropout in self._dropouts:
                dropout.train()

    def exports(self, pretrained_names: Mapping[str, str]) -> tuple[Exported, ...]:
        """The weights of the model without adapters, by the names of its parameters: own name -> name in
        `pretrained`."""
        own = {name: own_name for own_name, name in pretrained_names.items()}
        found = []
        for name, own_name in own.items():
            if ".lora_" in name or ".original_module." in name:
                continue
            adapter = None
            if name.endswith(".base_layer.weight"):
                layer = name.removesuffix(".base_layer.weight")
                a, b = (own[f"{layer}.lora_{part}.{_ADAPTER}.weight"] for part in "AB")
                adapter = (a, b, float(self._peft.get_submodule(f"base_model.model.{layer}").scaling[_ADAPTER]))
            found.append(Exported(plain_name(name), own_name, adapter))
        return tuple(found)

    def save(self, directory: Path, base: str, trained: Mapping[str, torch.Tensor]) -> None:
        """A directory that peft loads. `trained`: whole tensors by the names in `pretrained`."""
        from peft import get_peft_model_state_dict
        from safetensors.torch import save_file

        state = {f"base_model.model.{name}": tensor for name, tensor in trained.items()}
        named = get_peft_model_state_dict(self._peft, state_dict=state, save_embedding_layers=False)
        directory.mkdir(parents=True, exist_ok=True)
        save_file(
            {name: tensor.contiguous() for name, tensor in named.items()}, directory / "adapter_model.safetensors"
        )
        config = replace(self._peft.peft_config[_ADAPTER], inference_mode=True, base_model_name_or_path=base)
        config.save_pretrained(str(directory))


def low_rank_part(layer: Any, states: torch.Tensor) -> tuple[Any, tuple[torch.Tensor, torch.Tensor] | None]:
    """A linear layer without its adapter, and the factors of what that adds to its output: s A x and B. None: it has
    none, or it is off."""
    if not hasattr(layer, "lora_A"):
        return layer, None
    base = layer.get_base_layer()
    if layer.disable_adapters:
        return base, None
    down, up = layer.lora_A[_ADAPTER], layer.lora_B[_ADAPTER]
    states = layer.lora_dropout[_ADAPTER](states.to(down.weight.dtype))
    return base, ((down(states) * layer.scaling[_ADAPTER]).to(up.weight.dtype), up.weight)


def plain_name(name: str) -> str:
    """A weight's name in the model without adapters. Example: "q_proj.base_layer.weight" -> "q_proj.weight"."""
    for part in _PARTS:
        name = name.replace(part, ".")
    return name


def add_adapters(pretrained: PreTrainedModel, args: ModelArgs, head: Head, empty: bool) -> Adapters:
    """Puts the adapters of a role on its model, whose weights are frozen from then on. A critic's value head is trained
    in full. `empty`: their form alone."""
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError as error:
        raise StrategyError(f"model_args.lora_target needs the package peft. Install it: {PEFT.install}") from error
    config = LoraConfig(
        r=args.lora_rank,
        lora_alpha=args.adapter_alpha,
        use_rslora=args.use_rslora,
        lora_dropout=args.lora_dropout,
        target_modules=_targets(pretrained, args),
        modules_to_save=_trained_in_full(pretrained, args) or None,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what is checked here
        peft_model = get_peft_model(pretrained, config)
    peft_model.peft_config[_ADAPTER].task_type = _TASKS[head]  # earlier, it would have peft copy a critic's head
    if head == "value":
        pretrained.get_submodule("score").requires_grad_(True)
    if args.adapter_name_or_path is not None and not empty:
        _load(peft_model, args.adapter_name_or_path, args)
    return Adapters(peft_model)


def _targets(pretrained: PreTrainedModel, args: ModelArgs) -> list[str]:
    """Full names of the layers that lora_target names, without those that freeze_module_prefix names."""
    linear = {name: module for name, module in pretrained.named_modules() if type(module) is nn.Linear}
    layers = {name: module for name, module in linear.items() if not _is_head(pretrained, module)}
    found: dict[str, None] = {}
    for word in args.lora_target:
        if word in REFUSED_WORDS:
            raise StrategyError(f"model_args.lora_target: {word}: {REFUSED_WORDS[word]}")
        named = list(layers) if word == ALL_LINEAR else _named(linear, word)
        if _ties_ends(pretrained) and any(linear[name] is pretrained.get_output_embeddings() for name in named):
            raise StrategyError(f"model_args.lora_target: {word}: {_ONE_WEIGHT}; an adapter would be of the head alone")
        if not named:
            there = ", ".join(sorted({name.rpartition(".")[2] for name in linear}))
            raise StrategyError(f"model_args.lora_target: no linear layer of the model is named {word}. It has {there}")
        found |= dict.fromkeys(named)
    left = [name for name in found if not f"{name}.weight".startswith(args.frozen_prefixes)]
    if not left:
        raise StrategyError(
            f"model_args.freeze_module_prefix: {args.freeze_module_prefix} leaves no layer that lora_target names"
        )
    return left


def _trained_in_full(pretrained: PreTrainedModel, args: ModelArgs) -> list[str]:
    modules, found = dict(pretrained.named_modules()), []
    ends = {id(module) for module in (pretrained.get_input_embeddings(), pretrained.get_output_embeddings())}
    for word in args.additional_target:
        named = [name for name in _named(modules, word) if not f"{name}.weight".startswith(args.frozen_prefixes)]
        if not named:
            raise StrategyError(f"model_args.additional_target: no module of the model is named {word}")
        if _ties_ends(pretrained) and any(id(modules[name]) in ends for name in named):
            raise StrategyError(f"model_args.additional_target: {word}: {_ONE_WEIGHT}; two would come of it")
        found += named
    return found


def _named(modules: Mapping[str, Any], word: str) -> list[str]:
    """As peft finds them: a whole name, or its last parts."""
    return [name for name in modules if name == word or name.endswith(f".{word}")]


def _ties_ends(pretrained: PreTrainedModel) -> bool:
    return bool(getattr(pretrained.config.get_text_config(), "tie_word_embeddings", False))


def _is_head(pretrained: PreTrainedModel, module: nn.Module) -> bool:
    return module is pretrained.get_output_embeddings() or module is getattr(pretrained, "score", None)


def _load(peft_model: Any, place: str, args: ModelArgs) -> None:
    """StrategyError if the adapters that lie there are not the ones that the settings describe."""
    from peft import PeftConfig, get_peft_model_state_dict, set_peft_model_state_dict
    from peft.utils import load_peft_weights

    key = f"model_args.adapter_name_or_path: {place}"
    try:
        saved = PeftConfig.from_pretrained(place)
        weights = load_peft_weights(place, device="cpu")
    except (OSError, ValueError, TypeError, json.JSONDecodeError) as error:
        raise StrategyError(f"{key}: no adapter can be read: {error}") from error
    if (why := other_form(vars(saved), args)) is not None:
        raise StrategyError(f"{key} {why}")
    names = get_peft_model_state_dict(peft_model, state_dict=peft_model.state_dict(), save_embedding_layers=False)
    lacks, besides = sorted(names.keys() - weights.keys()), sorted(weights.keys() - names.keys())
    if lacks or besides:
        raise StrategyError(
            f"{key} has adapters for other layers than lora_target and additional_target name: it lacks "
            f"{', '.join(lacks[:3]) or 'none'}, and has {', '.join(besides[:3]) or 'none'} besides"
        )
    try:
        set_peft_model_state_dict(peft_model, weights)
    except RuntimeError as error:
        raise StrategyError(f"{key} does not fit the model: {error}") from error
