"""A model's weights and what a token costs in each of its layers, asked of transformers on the meta device, which
computes shapes alone. `python -m roll.run.start.measure` reads a config.json and writes what
`roll.configs.memory.model_shape` makes a shape of. No code that comes with a model is run."""

from __future__ import annotations

import functools
import json
import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import transformers
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten
from torch.utils.flop_counter import flop_registry
from transformers import (
    AttentionInterface,
    AttentionMaskInterface,
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    Cache,
    PretrainedConfig,
    PreTrainedModel,
)
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import revert_weight_conversion
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.pytorch_utils import Conv1D

from roll.configs.memory.layer_shape import LayerShape, SavedElements, Weight
from roll.configs.strategies.model_numbers import is_dropout
from roll.errors import describe
from roll.models.experts.ranks import experts_of
from roll.models.recomputation import GROUPED, is_dear
from roll.models.sequences.packed_attention import of_one_width

LENGTH = 256  # tokens of the row that is measured: whole chunks of every recurrence
EAGER_LENGTH = 211  # like no width of a model, so that scores of all pairs of tokens are known by their shape
_KERNEL, _EAGER = "measured", "eager"
_STACKS = ("aten::bmm", "aten::baddbmm")
_FUSED = re.compile(r"\b(?:([qkv])|gate|up)_proj\b")
_FIRST, _LAST = re.compile(r"\.\d+\."), re.compile(r"\.experts\.\d+\.")


@dataclass(frozen=True)
class _Cost:
    """Costs of layers for a row: what they kept and computed. `low`, `others`: bytes for a backward pass, of the
    model's dtype and of others. `flops`: with weights. `pairs`: multiplications for each pair of tokens."""

    passes: int = 0
    low: int = 0
    others: int = 0
    products: int = 0
    flops: int = 0
    pairs: int = 0
    heads: int = 0
    cached: int = 0
    cache_cuts: int = 0
    state: int = 0
    experts: int = 0

    def __add__(self, other: _Cost) -> _Cost:
        largest = {name: max(getattr(self, name), getattr(other, name)) for name in ("heads", "cache_cuts", "experts")}
        sums = {each.name: getattr(self, each.name) + getattr(other, each.name) for each in fields(self)}
        return _Cost(**sums | largest)


class _Kernel(torch.autograd.Function):
    """Saves what a kernel saves: its inputs and its results."""

    @staticmethod
    def forward(ctx: Any, compute: Callable[..., Any], *inputs: Any) -> Any:  # type: ignore[override]
        results = compute(*inputs)
        ctx.save_for_backward(*(each for each in tree_leaves((inputs, results)) if torch.is_tensor(each)))
        return results


class _Meter(TorchDispatchMode):
    """Notes what the layers of a model keep and compute in a pass over one row. Layers that are alike are computed
    once. `costs`: of each layer, in passes with a gradient and without; `lacking`: packages whose kernels the model
    would use."""

    def __init__(self, model: Any, length: int, kernels: Collection[str]):
        super().__init__()
        self.kernels = kernels
        self.costs: dict[str, dict[bool, _Cost]] = {}
        self.others, self.lacking = _Cost(), set[str]()
        self.length, self._dtype = length, model.dtype
        self._inside = list[_Cost]()
        self._known: dict[Any, tuple[_Cost, Any]] = {}
        self._noted: dict[int, Any] = {}  # storages, so that no other gets the address of one
        for tensor in (*model.parameters(), *model.buffers()):
            self._is_new(tensor)
        for name, module in model.named_modules():
            if isinstance(module, GradientCheckpointingLayer):
                module.forward = functools.partial(self._forward, name, module, module.forward)
        for _, experts in experts_of(model):
            experts.register_forward_pre_hook(lambda _, inputs: self.note(experts=inputs[1].shape[-1]))

    def note(self, **more: int) -> None:
        if self._inside:
            self._inside[-1] += _Cost(**more)
        else:
            self.others += _Cost(**more)

    def _forward(self, name: str, module: nn.Module, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        has_gradient = torch.is_grad_enabled()
        alike = (_signature(module), has_gradient)
        if alike not in self._known:
            for each in tree_leaves((args[1:], kwargs)):  # angles, masks and what else is there once for all layers
                if torch.is_tensor(each):
                    self._is_new(each)
            self._inside.append(_Cost(passes=1))
            result = forward(*args, **kwargs)
            self._known[alike] = self._inside.pop(), result
        cost, result = self._known[alike]
        of_layer = self.costs.setdefault(name, {True: _Cost(), False: _Cost()})
        of_layer[has_gradient] += cost
        return result

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func._schema.name in GROUPED:
            self.note(flops=2 * result.numel() * args[0].shape[-1])
        elif (count := flop_registry.get(func._overloadpacket)) is not None:
            flops = count(*args, **(kwargs or {}), out_val=result)
            is_pairs = self.length == EAGER_LENGTH and func._schema.name in _STACKS
            is_scores = is_pairs and result.shape[-2:] == (self.length, self.length)
            if is_scores or (is_pairs and args[-2].shape[-1] == self.length):
                self.note(pairs=flops // 2 // self.length**2, heads=result.shape[0] if is_scores else 0)
            else:
                self.note(flops=flops)
        if is_dear(func, args):
            self.note(products=sum(each.numel() for each in tree_leaves(result) if torch.is_tensor(each)))
        return result

    def keep(self, tensor: torch.Tensor) -> torch.Tensor:
        """Notes a tensor that autograd saves; not scores of all pairs of tokens."""
        if self._inside and self._is_new(tensor):
            size = tensor.untyped_storage().nbytes()
            if self.length != EAGER_LENGTH or tensor.shape[-2:] != (self.length, self.length):
                self.note(**{"low" if tensor.dtype == self._dtype else "others": size})
        return tensor

    def _is_new(self, tensor: torch.Tensor) -> bool:
        storage, count = tensor.untyped_storage(), len(self._noted)
        self._noted.setdefault(storage._cdata, storage)
        return len(self._noted) > count

    def attend(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """The result [1, length, heads, width] of attention over [1, heads, length, width]."""
        (_, heads, length, width), result_width = query.shape, value.shape[-1]
        self.note(heads=heads, pairs=heads * (width + result_width), products=heads * length * result_width)

        def compute(query: torch.Tensor, *_: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            shape = (1, length, heads, query.shape[-1])
            return query.new_empty(shape), query.new_empty(shape[:-1], dtype=torch.float32)

        return _Kernel.apply(compute, *of_one_width(query, key, value))[0][..., :result_width]


def _signature(layer: nn.Module) -> tuple[object, ...]:
    """Modules, sizes and settings of a layer, but not its number: layers with the same compute alike."""
    plain = (int, float, str, type(None))
    return tuple(
        (
            name,
            type(module),
            *((key, value) for key, value in vars(module).items() if isinstance(value, plain) and key != "layer_idx"),
            *((own, weight.shape) for own, weight in module.named_parameters(recurse=False)),
        )
        for name, module in layer.named_modules()
    )


_meter: _Meter  # of the pass that is under way


def use_stand_ins() -> None:
    """Puts stand-ins in the places of attention, caches and kernels of recurrences, in models imported later."""

    def attention(_: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *__: Any, **___: Any) -> Any:
        return _meter.attend(query, key, value), None

    def no_mask(*_: Any, **__: Any) -> torch.Tensor:
        return torch.zeros(1, 1, _meter.length, _meter.length, device="meta")

    def update(_: Any, keys: torch.Tensor, values: torch.Tensor, *__: Any, **___: Any) -> Any:
        _meter.note(cached=(keys.numel() + values.numel()) // _meter.length, cache_cuts=keys.shape[1])
        return keys, values

    def update_state(_: Any, state: torch.Tensor, *__: Any, **___: Any) -> torch.Tensor:
        _meter.note(state=state.numel())
        return state

    def kernel(name: str, package: str, *_: Any, **__: Any) -> Any:
        def decorated(reference: Callable[..., Any]) -> Any:
            @functools.wraps(reference)
            def computed(*args: Any, **kwargs: Any) -> Any:
                if package not in _meter.kernels:
                    _meter.lacking.add(package)
                    return reference(*args, **kwargs)
                flat, spec = tree_flatten((args, kwargs))

                def compute(*flat: Any) -> Any:
                    args, kwargs = tree_unflatten(flat, spec)
                    return reference(*args, **kwargs)

                return _Kernel.apply(compute, *flat)

            return computed

        return decorated

    AttentionInterface.register(_KERNEL, attention)  # type: ignore[arg-type]
    AttentionMaskInterface.register(_KERNEL, no_mask)  # type: ignore[arg-type]
    changed: Any = Cache
    changed.update, changed.update_recurrent_state = update, update_state
    changed.update_conv_state = changed.update_indexer = lambda _, state, *__, **___: state
    transformers.integrations.use_kernel_func_from_hub_with_fallback = kernel  # type: ignore[attr-defined]
    PreTrainedModel.warn_if_padding_and_no_attention_mask = lambda *_: None  # type: ignore[method-assign]


def _built(config: PretrainedConfig, attention: str) -> Any:
    kind = AutoModelForImageTextToText if hasattr(config, "vision_config") else AutoModelForCausalLM
    with torch.device("meta"):
        model = kind.from_config(config, dtype=torch.bfloat16, attn_implementation=attention).train()
    model._weight_conversions = get_model_conversion_mapping(model, add_legacy=False)
    return model


def _passed(config: PretrainedConfig, attention: str, kernels: Collection[str]) -> tuple[Any, _Meter]:
    global _meter
    model, length = _built(config, attention), LENGTH if attention == _KERNEL else EAGER_LENGTH
    _meter = _Meter(model, length, kernels)
    with _meter, saved_tensors_hooks(_meter.keep, lambda tensor: tensor):
        model.base_model(input_ids=torch.zeros(1, length, dtype=torch.long, device="meta"), use_cache=True)
    return model, _meter


def read_config(model: Mapping[str, Any]) -> PretrainedConfig:
    """The config.json of a model as transformers reads its file, without dropout."""
    with TemporaryDirectory() as directory:
        Path(directory, "config.json").write_text(json.dumps(model), encoding="utf-8")
        config = AutoConfig.from_pretrained(directory, trust_remote_code=False)
    for part in (config, config.get_text_config()):
        part.update({key: 0.0 for key, value in part.to_dict().items() if is_dropout(key, value)})
    return config


def measure(config: PretrainedConfig, kernels: Collection[str] = ()) -> dict[str, Any]:
    """The fields of a shape of the model: `Weight`, `LayerShape` and `ModelShape` as dictionaries. `kernels`: packages
    that are installed; without theirs, recurrences compute in transformers' own form."""
    try:
        model, meter = _passed(config, _KERNEL, kernels)
        is_eager = _has_other_attention(meter)
    except Exception as error:
        try:
            model, meter, is_eager = *_passed(config, _EAGER, kernels), True
        except Exception:
            raise error from None
    else:
        if is_eager:
            model, meter = _passed(config, _EAGER, kernels)
    text = config.get_text_config()
    latent = getattr(text, "kv_lora_rank", 0) and text.kv_lora_rank + text.qk_rope_head_dim
    layers = {name: meter.costs[name] for name, _ in model.named_modules() if name in meter.costs}
    trained = meter.others.flops + sum(costs[True].flops for costs in layers.values())
    every = trained + sum(costs[False].flops for costs in layers.values())
    return {
        "weights": [asdict(weight) for weight in _weights(model, list(layers))],
        "layers": [
            asdict(_layer(model.get_submodule(name), costs, meter.length, text, latent or 0))
            for name, costs in layers.items()
        ],
        "products": every / 2 / meter.length,
        "trained_products": trained / 2 / meter.length,
        "ties_head": model.get_output_embeddings().weight is model.get_input_embeddings().weight,
        "is_eager": is_eager,
        "states_in_fp32": "float32" in (getattr(text, f"mamba_ssm_{key}dtype", "") for key in ("", "cache_")),
        "lacking": sorted(meter.lacking),
    }


def _has_other_attention(meter: _Meter) -> bool:
    """True for keys that no kernel of attention took."""
    cost = sum((cost for each in meter.costs.values() for cost in each.values()), _Cost())
    return bool(cost.cached and not cost.heads)


def _layer(module: nn.Module, costs: dict[bool, _Cost], length: int, text: Any, latent: int) -> LayerShape:
    cost, both, hidden = costs[True], costs[True] + costs[False], text.hidden_size
    passes = max(1, cost.passes)
    saved = SavedElements(cost.low / 2 / length / passes, cost.others / 4 / length / passes)
    has_experts = any(".experts." in f".{name}." for name, _ in module.named_modules())
    convolutions = (each for each in module.modules() if isinstance(each, nn.Conv1d))
    products = hidden + cost.products / length / passes
    return LayerShape(
        inside=saved,
        products=products,
        widest=saved if both.state else SavedElements(products),
        heads=both.heads,
        pair_products=both.pairs,
        cached=latent * both.passes if latent and both.cached else both.cached,
        cache_cuts=1 if latent else max(1, both.cache_cuts),
        state=both.state,
        convolved=sum(each.in_channels * each.kernel_size[0] for each in convolutions),
        experts_per_token=both.experts or (getattr(text, "num_experts_per_tok", None) or 1 if has_experts else 0),
        trained_passes=cost.passes,
    )


def _weights(model: Any, layers: Sequence[str]) -> Iterator[Weight]:
    """Every weight in the order of the model. Vocabularies, matrices of layers that ran, and experts can be divided."""
    matrices = {id(p) for each in model.modules() if isinstance(each, nn.Linear | Conv1D) for p in each.parameters()}
    stacks, embedding, head = dict(experts_of(model)), model.get_input_embeddings(), model.get_output_embeddings()
    place, patterns = -1, dict[tuple[str, torch.Size], list[Weight]]()
    for name, weight in model.named_parameters():
        layer = next((at for at in layers if name.startswith(f"{at}.")), "")
        place = layers.index(layer) if layer else place if place < 0 else len(layers)
        inside = name.removeprefix(f"{layer}.")
        one = Weight(name, tuple(weight.shape), "whole", place, _FUSED.sub(_fused, inside))
        if weight is embedding.weight:
            yield replace(one, cut="vocabulary", block="embedding")
        elif head is not None and any(weight is each for each in head.parameters()):
            yield replace(one, cut="vocabulary", block="head")
        elif layer and ".experts." in f".{inside}":
            alike = inside, weight.shape
            if alike not in patterns:
                patterns[alike] = list(_experts(model, one, weight, name.rpartition(".")[0] in stacks))
            number = layer.rpartition(".")[2]
            for each in patterns[alike]:
                names = {key: _FIRST.sub(f".{number}.", getattr(each, key), count=1) for key in ("name", "stored")}
                yield replace(each, layer=place, **names)
        else:
            yield replace(one, cut="tensor") if layer and id(weight) in matrices else one


def _fused(match: re.Match[str]) -> str:
    return "qkv_proj" if match[1] else "gate_up_proj"


def _experts(model: Any, one: Weight, weight: torch.Tensor, can_have_adapters: bool) -> Iterator[Weight]:
    """A weight of all experts of a layer: a matrix of each where files hold them so, else one tensor of all."""
    stored = revert_weight_conversion(model, {one.name: weight})
    if len(stored) > 1:
        matrices = {_LAST.sub(".experts.{expert}.", name): tuple(each.shape) for name, each in stored.items()}
        for name, shape in matrices.items():
            yield replace(one, name=name, shape=shape, cut="expert", count=len(stored) // len(matrices))
    elif _LAST.search(one.name):
        yield replace(one, cut="expert")
    else:
        (in_files,), (count, *shape) = stored, one.shape
        name = one.name.replace(".experts.", ".experts.{expert}.")
        yield replace(
            one, name=name, shape=tuple(shape) if can_have_adapters else (1, *shape), cut="expert", count=count,
            stored=in_files.removesuffix(".weight") if can_have_adapters else "",
        )  # fmt: skip


def _answer(model: Mapping[str, Any], kernels: Sequence[str]) -> dict[str, Any]:
    try:
        return measure(read_config(model), kernels)
    except Exception as error:
        return {"why_not": " ".join(describe(error).split())[:300]}


if __name__ == "__main__":
    use_stand_ins()
    json.dump([_answer(**question) for question in json.load(sys.stdin)], sys.stdout)
