"""The adapters of one rank's part of a model: made, loaded, switched off, merged, and named as peft names them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.dist_checkpointing.mapping import ShardedTensor
from megatron.core.tensor_parallel import ColumnParallelLinear, RowParallelLinear
from torch import nn

from roll.configs.checks.lora import EXPERTS_AND_RSLORA
from roll.configs.sections.model import ModelArgs
from roll.configs.tables.roles import Head
from roll.errors import StrategyError
from roll.models.lora import SavedAdapter, read_adapter, targets, trained_in_full
from roll.models.megatron.family import (
    EMBEDDING,
    Columns,
    Entry,
    FusedGateUp,
    GateUp,
    QueryKeyValue,
    Rows,
    Shapes,
    WeightMap,
)
from roll.models.megatron.low_rank import CHILD, FACTORS, Form, LayerAdapters, factor_rule
from roll.models.megatron.weights import VALUE_HEAD, Exporter, global_parameters, tensor_parallel, untied

_ORIGINAL = "original_"  # begins the name of a parameter beside one that is trained in full


@dataclass(frozen=True)
class Base:
    """What adapters are put on. `weights` and `shapes`: of the whole model."""

    chunks: Sequence[nn.Module]
    weights: WeightMap
    shapes: Shapes
    ties_head: bool
    head: Head
    device: torch.device
    model_type: str

    def parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Those of the model itself, by their names in the whole model."""
        held = untied(global_parameters(self.chunks), self.ties_head)
        yield from ((name, parameter) for name, parameter in held.items() if not _is_beside(name))

    def modules(self) -> dict[int, nn.Module]:
        """The module that owns a parameter, by the parameter's id."""
        owners = (module for chunk in self.chunks for module in chunk.modules())
        return {id(parameter): module for module in owners for parameter in module.parameters(recurse=False)}


class MegatronAdapters:
    """Those of this rank, and what is trained in full beside them. Built on every rank at once."""

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
        """Whose gradients are to be summed over the tensor-parallel ranks of their experts."""
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
            for parameter, own in trained:
                parameter.data = own

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
                self._words(),
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
        found = {}
        for own_name, parameter in chunk.named_parameters():
            if f".{CHILD}." in own_name:
                found[own_name] = self._sharded(names[id(parameter)], parameter)
        return found

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
        form, modules, found = Form(args.lora_rank, scale, args.lora_dropout, seed), self._base.modules(), {}
        for name, parameter in self._base.parameters():
            if name not in linear or not chosen & set(_layers(linear[name])):
                continue
            module = modules[id(parameter)]
            assert isinstance(module, ColumnParallelLinear | RowParallelLinear), type(module)
            rows = _rows(linear[name], parameter, tensor_parallel(name)[1], self._base.shapes)
            found[name] = LayerAdapters(module, rows, chosen, isinstance(module, RowParallelLinear), form)
            module.add_module(CHILD, found[name])
        return found

    def _train_in_full(self) -> list[tuple[nn.Parameter, nn.Parameter]]:
        """What additional_target names, each with the copy that stays. Experts in one tensor, sinks and corrections
        of experts are no modules of their own."""
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
        found, owners = [], self._base.modules()
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
                found.append((parameter, original))
        return found

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

    def _words(self) -> list[str]:
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
    found: list[list[str]] = [[] for _ in range(dist.get_world_size())]
    dist.all_gather_object(found, list(names))
    return list(dict.fromkeys(name for of_rank in found for name in of_rank))
