"""The adapters of one rank's part of a model: made, loaded, switched off, merged, and named as peft names them."""

import math
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.dist_checkpointing.mapping import ShardedTensor
from megatron.core.tensor_parallel import (
    ColumnParallelLinear,
    RowParallelLinear,
    copy_to_tensor_model_parallel_region,
    gather_from_sequence_parallel_region,
    reduce_from_tensor_model_parallel_region,
    reduce_scatter_to_sequence_parallel_region,
)
from megatron.core.tensor_parallel.layers import set_tensor_model_parallel_attributes
from megatron.core.tensor_parallel.random import get_cuda_rng_tracker
from torch import nn
from torch.nn import functional

from roll.configs.sections.model import Head, ModelArgs
from roll.errors import StrategyError
from roll.features.lora.adapters import SavedAdapter, read_adapter, targets, trained_in_full
from roll.features.lora.model_checks import EXPERTS_AND_RSLORA
from roll.models.megatron.family import (
    EMBEDDING,
    Columns,
    Entry,
    FusedGateUp,
    GateUp,
    QueryKeyValue,
    Rows,
    Rule,
    Shapes,
    WeightMap,
    Whole,
)
from roll.models.megatron.weights import VALUE_HEAD, Exporter, global_parameters, tensor_parallel, untied

# LoRA on one of Megatron's linear layers, which may stand for several of Hugging Face's (q, k and v; gate and up).
#
# Each of those has adapters of its own. Under tensor parallelism the factor on the side that the layer divides is
# divided with it, the other one is whole on every rank; what travels between ranks is r numbers per position.

CHILD = "adapters"  # of the linear layer that they stand beside
FACTORS = ("lora_A", "lora_B")


@dataclass(frozen=True)
class Form:
    """`scale` is s in W + s B A. `seed`: of A, which is the same under any parallel sizes."""

    rank: int
    scale: float
    dropout: float
    seed: int


class Pair(nn.Module):
    """A and B of one layer of Hugging Face's: what this rank holds of them."""

    lora_A: nn.Parameter
    lora_B: nn.Parameter

    def __init__(self, a: torch.Tensor, b: torch.Tensor):
        super().__init__()
        self.lora_A, self.lora_B = nn.Parameter(a), nn.Parameter(b)


class LayerAdapters(nn.Module):
    """`layers`: full Hugging Face names of those that the matrix stands for -> where their rows lie in this rank's part
    of it; of them, `chosen` ones are adapted."""

    def __init__(self, linear: Any, layers: Mapping[str, torch.Tensor], chosen: set[str], by_input: bool, form: Form):
        super().__init__()
        weight: nn.Parameter = linear.weight
        self.by_input, self.form, self.is_on = by_input, form, True
        self.group: Any = linear.tp_group
        size, rank, is_expert = self.group.size(), self.group.rank(), bool(linear.is_expert)
        self.is_partial = is_expert and size > 1  # the dispatcher of tokens sums over the ranks
        self.by_position = bool(linear.config.sequence_parallel) and size > 1 and not is_expert
        self.pairs = nn.ModuleDict()
        inputs = weight.shape[1] * (size if by_input else 1)
        for name, rows in layers.items():
            if name not in chosen:
                continue
            a = _first(name, form, inputs)
            if by_input:
                a = a.chunk(size, dim=1)[rank]
            pair = Pair(a.to(weight, copy=True), torch.zeros(len(rows), form.rank).to(weight))
            self.pairs[name.rpartition(".")[2]] = pair
            for factor in FACTORS:
                self._mark(getattr(pair, factor), (factor == "lora_A") == by_input, weight)
        order = torch.cat([rows for name, rows in layers.items() if name in chosen]).to(weight.device)
        in_order = torch.equal(order, torch.arange(len(weight), device=weight.device))
        self.rows: torch.Tensor | None
        self.register_buffer("rows", None if in_order else order, persistent=False)
        linear.register_forward_hook(self._added, prepend=True)  # before what others make of the output

    def _mark(self, parameter: Any, is_divided: bool, weight: Any) -> None:
        """Marks a parameter for Megatron: whether the gradient norm counts it once, and over which ranks its gradient
        is summed."""
        set_tensor_model_parallel_attributes(parameter, True, 0, 1)
        parameter.allreduce = weight.allreduce
        if not is_divided:
            parameter.shared = self.group.rank() > 0
            parameter.sequence_parallel = self.by_position

    @property
    def sums(self) -> Iterator[nn.Parameter]:
        """Parameters of which every rank of `group` has a part of the gradient, and Megatron sums none."""
        if self.is_partial:
            yield from (getattr(pair, "lora_B" if self.by_input else "lora_A") for pair in self.pairs.values())

    def merged(self, weight: torch.Tensor) -> torch.Tensor:
        """This rank's part of W + s B A, added in fp32 and rounded once."""
        factors = [(pair.lora_A, pair.lora_B) for pair in self._pairs]
        low_rank = torch.cat([b.detach().float() @ a.detach().float() for a, b in factors]) * self.form.scale
        whole = weight.detach().float()
        return (whole + low_rank if self.rows is None else whole.index_add(0, self.rows, low_rank)).to(weight.dtype)

    @property
    def _pairs(self) -> list[Pair]:
        return list(self.pairs.values())  # type: ignore[arg-type]

    def _added(self, linear: nn.Module, inputs: tuple[torch.Tensor, ...], outputs: Any) -> Any:
        if not self.is_on:
            return None
        output, bias = outputs
        low = torch.cat([functional.linear(self._dropped(inputs[0]), pair.lora_A) for pair in self._pairs], dim=-1)
        by_layer = self._exchanged(low).split(self.form.rank, dim=-1)
        products = [functional.linear(part, pair.lora_B) for part, pair in zip(by_layer, self._pairs, strict=True)]
        product = torch.cat(products, dim=-1) * self.form.scale
        return (output + product if self.rows is None else output.index_add(-1, self.rows, product)), bias

    def _dropped(self, inputs: torch.Tensor) -> torch.Tensor:
        if not (self.training and self.form.dropout):
            return inputs
        with self._random():
            return functional.dropout(inputs, self.form.dropout)

    def _random(self) -> AbstractContextManager[None]:
        """Draws that tensor-parallel ranks with the same input have in common, and those with parts of it have not."""
        differs = self.by_input or self.by_position
        tracker: Any = get_cuda_rng_tracker()
        return tracker.fork() if differs else nullcontext()

    def _exchanged(self, low: torch.Tensor) -> torch.Tensor:
        """A times the input, as B needs it: of all positions of the rank's rows, or of its positions of all rows."""
        if self.is_partial or self.group.size() == 1:
            return low
        if self.by_position:
            if self.by_input:
                return reduce_scatter_to_sequence_parallel_region(low, group=self.group)
            return gather_from_sequence_parallel_region(low, group=self.group)
        if self.by_input:
            return reduce_from_tensor_model_parallel_region(low, group=self.group)
        return copy_to_tensor_model_parallel_region(low, group=self.group)


def factor_rule(layer: str, factor: str, of_matrix: Rule) -> Rule:
    """Rule of one factor of a layer, under its name in peft's files."""
    name, by_input = f"{layer}.{factor}.weight", isinstance(of_matrix, Columns)
    if factor == "lora_B" and isinstance(of_matrix, FusedGateUp):
        return FusedGateUp(name)
    if factor == "lora_A":
        return Columns(name) if by_input else Whole(name)
    return Whole(name) if by_input else Rows(name)


def _first(name: str, form: Form, inputs: int) -> torch.Tensor:
    """A new A, whole: peft's distribution, drawn by the layer's name. A new B is 0."""
    generator = torch.Generator().manual_seed(zlib.crc32(f"{form.seed} {name}".encode()))
    bound = 1 / math.sqrt(inputs)
    return torch.empty(form.rank, inputs).uniform_(-bound, bound, generator=generator)


_ORIGINAL = "original_"  # begins the name of a parameter beside one that is trained in full


@dataclass(frozen=True)
class Base:
    """Model that adapters are put on. `weights` and `shapes`: of the whole model."""

    chunks: Sequence[nn.Module]
    weights: WeightMap
    shapes: Shapes
    ties_head: bool
    head: Head
    device: torch.device
    model_type: str

    def parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield the parameters of the model itself, by their names in the whole model."""
        held = untied(global_parameters(self.chunks), self.ties_head)
        yield from ((name, parameter) for name, parameter in held.items() if not _is_beside(name))

    def modules(self) -> dict[int, nn.Module]:
        """The module that owns a parameter, by the parameter's id."""
        owners = (module for chunk in self.chunks for module in chunk.modules())
        return {id(parameter): module for module in owners for parameter in module.parameters(recurse=False)}


class MegatronAdapters:
    """Adapters of this rank, and the parameters that are trained in full beside them. Built on every rank at once."""

    def __init__(self, base: Base, args: ModelArgs, seed: int):
        self._base, self._args = base, args
        linear = {name: base.weights.entry(name) for name, _ in base.parameters()}
        linear = {
            name: e
            for name, e in linear.items()
            if isinstance(e.rule, QueryKeyValue | GateUp | FusedGateUp | Columns | Rows)
        }
        linear = {name: entry for name, entry in linear.items() if name.endswith(".weight")}
        everywhere = _everywhere(layer for entry in linear.values() for layer in _layers(entry))
        self._targets = targets(everywhere, args)
        self._is_mixture = any(".experts." in layer for layer in everywhere)
        if args.use_rslora and any(".experts." in layer for layer in self._targets):
            raise StrategyError(f"model_args.use_rslora: {EXPERTS_AND_RSLORA}")
        self._check_prefixes()
        for chunk in base.chunks:
            chunk.requires_grad_(False)
        self._layers = self._put_on(linear, seed)
        self._full = self._train_in_full()
        if base.head != "lm":
            for name, parameter in base.parameters():
                parameter.requires_grad_(parameter.requires_grad or base.weights.entry(name).hf_names[0] in VALUE_HEAD)
        trained = {
            name: p for name, p in global_parameters(base.chunks) if p.requires_grad and not self._is_score(name)
        }
        self._exporter = Exporter(trained, self.entry, base.shapes, base.device)
        if args.adapter_name_or_path is not None:
            self._load(trained)

    @property
    def partly_summed(self) -> list[nn.Parameter]:
        """Adapter weights whose gradients must be summed over the tensor-parallel ranks of their experts."""
        return [parameter for layer in self._layers.values() for parameter in layer.sums]

    @contextmanager
    def off(self) -> Iterator[None]:
        """Inside, the model is the one that the adapters were put on, to the bit."""
        trained = [(parameter, parameter.data) for parameter, _ in self._full]
        for layer in self._layers.values():
            layer.is_on = False
        for parameter, original in self._full:
            parameter.data = original.data
        try:
            yield
        finally:
            for layer in self._layers.values():
                layer.is_on = True
            for parameter, values in trained:
                parameter.data = values

    def merged_exporter(self) -> Exporter:
        """Exports the whole model, with adapters merged into its weights."""

        def value(name: str, parameter: torch.Tensor) -> torch.Tensor:
            layer = self._layers.get(name)
            return parameter.detach() if layer is None else layer.merged(parameter)

        base = self._base
        return Exporter(
            dict(base.parameters()), base.weights.entry, base.shapes, base.device, value, self._layers.keys()
        )

    def save(self, directory: Path) -> None:
        """A directory that peft loads. Collective; rank 0 writes."""
        weights = {
            name: tensor.to("cpu", copy=True)
            for name, tensor in self._exporter.tensors()
            if tensor.device.type != "meta"
        }
        if dist.get_rank() == 0:
            full = sorted({name.rpartition(".")[0] for name in weights if name.split(".")[-2] not in FACTORS})
            beside = self._targets if self._is_mixture else ()
            SavedAdapter(
                self._args,
                self._base.head,
                self._target_names(),
                full,
                weights,
                [name for name in beside if ".experts." not in name],
                self._base.model_type,
            ).write(directory)

    def entry(self, name: str) -> Entry:
        """Entry of a trained parameter. Adapters have the names of peft's files."""
        if f".{CHILD}." not in name:
            return self._base.weights.entry(name)
        matrix, _, (last, factor) = *name.partition(f".{CHILD}.")[:2], name.rsplit(".", 2)[1:]
        of_matrix = self._base.weights.entry(f"{matrix}.weight")
        place, layer = next((i, n) for i, n in enumerate(_layers(of_matrix)) if n.rpartition(".")[2] == last)
        rule = factor_rule(layer, factor, of_matrix.rule)
        return Entry(rule, rule.names, (*of_matrix.order, place, FACTORS.index(factor)))

    def sharded_state(self, chunk: nn.Module) -> dict[str, ShardedTensor]:
        """The adapters of a chunk as Megatron's checkpoints describe tensors: whole ones under the names of peft's
        files."""
        names = {id(parameter): name for name, parameter in global_parameters([chunk])}
        state = {}
        for own_name, parameter in chunk.named_parameters():
            if f".{CHILD}." in own_name:
                state[own_name] = self._sharded(names[id(parameter)], parameter)
        return state

    def _sharded(self, name: str, parameter: nn.Parameter) -> ShardedTensor:
        rule, key = (entry := self.entry(name)).rule, entry.hf_names[0]
        (rank, size), is_expert = tensor_parallel(name), ".local_experts." in name
        copies = (
            parallel_state.get_expert_data_parallel_rank()
            if is_expert
            else parallel_state.get_data_parallel_rank(with_context_parallel=True)
        )
        if not rule.is_split:
            return ShardedTensor.from_rank_offsets(key, parameter, replica_id=(0, rank, copies))
        cut = (1 if isinstance(rule, Columns) else 0, rank, size)
        return ShardedTensor.from_rank_offsets(key, parameter, cut, replica_id=(0, 0, copies))

    def _put_on(self, linear: Mapping[str, Entry], seed: int) -> dict[str, LayerAdapters]:
        args, chosen = self._args, set(self._targets)
        scale = args.adapter_alpha / (args.lora_rank**0.5 if args.use_rslora else args.lora_rank)
        form, modules, adapters = Form(args.lora_rank, scale, args.lora_dropout, seed), self._base.modules(), {}
        for name, parameter in self._base.parameters():
            if name not in linear or not chosen & set(_layers(linear[name])):
                continue
            module = modules[id(parameter)]
            assert isinstance(module, ColumnParallelLinear | RowParallelLinear), type(module)
            rows = _rows(linear[name], parameter, tensor_parallel(name)[1], self._base.shapes)
            adapters[name] = LayerAdapters(module, rows, chosen, isinstance(module, RowParallelLinear), form)
            module.add_module(CHILD, adapters[name])
        return adapters

    def _train_in_full(self) -> list[tuple[nn.Parameter, nn.Parameter]]:
        """Return the parameters that additional_target names, each with the copy that stays. Experts in one tensor,
        sinks and corrections of experts are no modules of their own."""
        entries = {name: (p, self._base.weights.entry(name)) for name, p in self._base.parameters()}
        here = {
            name: (parameter, entry.hf_names)
            for name, (parameter, entry) in entries.items()
            if entry.expert is None and entry.hf_names[0].endswith((".weight", ".bias"))
        }
        modules = _everywhere(n.rpartition(".")[0] for _, names in here.values() for n in names)
        ends = [n.removesuffix(".weight") for n in self._base.weights.entry(EMBEDDING).hf_names]
        tied = [*ends, "lm_head"] if self._base.ties_head else []
        chosen = set(trained_in_full([*modules, *tied[1:]], tied, self._args))
        trained, owners = [], self._base.modules()
        for parameter, names in here.values():
            hits = [name.rpartition(".")[0] in chosen for name in names]
            if any(hits) and not all(hits):
                raise StrategyError(
                    f"model_args.additional_target: {', '.join(self._args.additional_target)} names only a part of one "
                    f"Megatron parameter ({', '.join(names)})"
                )
            if all(hits):
                original = nn.Parameter(parameter.detach().clone(), requires_grad=False)
                owner = owners[id(parameter)]
                own_name = next(name for name, p in owner.named_parameters(recurse=False) if p is parameter)
                owner.register_parameter(f"{_ORIGINAL}{own_name}", original)
                parameter.requires_grad_(True)
                trained.append((parameter, original))
        return trained

    def _check_prefixes(self) -> None:
        names = _everywhere(n for name, _ in self._base.parameters() for n in self._base.weights.entry(name).hf_names)
        for prefix in self._args.frozen_prefixes:
            if not any(name.startswith(prefix) for name in names):
                raise StrategyError(f"model_args.freeze_module_prefix: no parameter's name begins with {prefix!r}")

    def _is_score(self, name: str) -> bool:
        return f".{CHILD}." not in name and self._base.weights.entry(name).hf_names[0] in VALUE_HEAD

    @torch.no_grad()
    def _load(self, trained: Mapping[str, nn.Parameter]) -> None:
        weights = read_adapter(self._exporter.hf_names, self._args)
        for name, parameter in trained.items():
            entry = self.entry(name)
            rank, size = tensor_parallel(name)
            part = entry.rule.split([weights[n] for n in entry.hf_names], rank, size, self._base.shapes)
            if part.shape != parameter.shape:
                raise StrategyError(
                    f"model_args.adapter_name_or_path: {self._args.adapter_name_or_path} does not fit the model: "
                    f"{entry.hf_names[0]} is {tuple(weights[entry.hf_names[0]].shape)}"
                )
            parameter.copy_(part)

    def _target_names(self) -> list[str]:
        """Layers as a PEFT directory names them: by their last parts where that says the same, which of a mixture are a
        few words instead of thousands of names."""
        if self._args.frozen_prefixes or any("." in word for word in self._args.lora_target):
            return self._targets
        return sorted({name.rpartition(".")[2] for name in self._targets})


def _is_beside(name: str) -> bool:
    return f".{CHILD}." in name or name.rpartition(".")[2].startswith(_ORIGINAL)


def _layers(entry: Entry) -> list[str]:
    return [name.removesuffix(".weight") for name in entry.hf_names]


def _rows(entry: Entry, parameter: nn.Parameter, size: int, shapes: Shapes) -> dict[str, torch.Tensor]:
    """Row numbers of each layer in this rank's part of the matrix."""
    mine = replace(shapes, num_heads=shapes.num_heads // size, num_kv_heads=shapes.num_kv_heads // size)
    places = entry.rule.merge([torch.arange(len(parameter))[:, None]], mine)
    return dict(zip(_layers(entry), (place[:, 0] for place in places), strict=True))


def _everywhere(names: Any) -> list[str]:
    """The names of all ranks, in the same order on each."""
    gathered: list[list[str]] = [[] for _ in range(dist.get_world_size())]
    dist.all_gather_object(gathered, list(names))
    return list(dict.fromkeys(name for of_rank in gathered for name in of_rank))
