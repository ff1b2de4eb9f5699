"""Hugging Face tensors into a rank's part of a model, and out of all ranks' parts again, one parameter at a time."""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, zip_longest
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from torch import nn

from roll.errors import StrategyError
from roll.models.megatron.family import EMBEDDING, EXPERT, HEAD, LAYER, PREDICTION_HEAD, Entry, Shapes, WeightMap
from roll.models.megatron.hf_files import HfReader

_GROUPED_EXPERT = re.compile(r"^mlp\.experts\.(linear_fc[12])\.weight(\d+)$")
_FUSED_NORMS = {
    "self_attention.linear_qkv.layer_norm_weight": "input_layernorm.weight",
    "mlp.linear_fc1.layer_norm_weight": "pre_mlp_layernorm.weight",
}
VALUE_HEAD = ("score.weight", "score.bias")  # Hugging Face names


def local_name(name: str) -> str:
    """A decoder layer's parameter as Megatron's own layers name it. transformer-engine puts norms into the matrix
    behind them, and its grouped product numbers the experts of a rank.

    Example: mlp.experts.linear_fc1.weight3 is mlp.experts.local_experts.3.linear_fc1.weight.
    """
    grouped = _GROUPED_EXPERT.match(name)
    if grouped is not None:
        return f"mlp.experts.local_experts.{grouped.group(2)}.{grouped.group(1)}.weight"
    return _FUSED_NORMS.get(name, name)


def global_parameters(chunks: Sequence[nn.Module]) -> Iterator[tuple[str, nn.Parameter]]:
    """This rank's parameters under the names they have in the whole model: layers and experts counted over all ranks. A
    MTP head is the layer behind the last, as it is in the model's files."""
    for chunk in chunks:
        model: Any = chunk
        while isinstance(getattr(model, "module", None), nn.Module):
            model = model.module
        layers = model.decoder.layers
        for name, parameter in model.named_parameters():
            name = PREDICTION_HEAD.sub(f"decoder.layers.{model.config.num_layers}.", name)
            match = LAYER.match(name)
            if match is not None and int(match.group(1)) < len(layers):
                layer = layers[int(match.group(1))].layer_number - 1
                name = f"decoder.layers.{layer}.{local_name(name[match.end() :])}"
            expert = EXPERT.search(name)
            if expert is not None:
                number = _first_expert(model) + int(expert.group(1))
                name = f"{name[: expert.start()]}.local_experts.{number}.{name[expert.end() :]}"
            yield name, parameter


def untied(parameters: Iterable[tuple[str, nn.Parameter]], ties_head: bool) -> dict[str, nn.Parameter]:
    """Parameters without the copy of the embedding that a last stage has for its head."""
    return {name: parameter for name, parameter in parameters if not (ties_head and name == HEAD)}


def _first_expert(model: Any) -> int:
    local = int(model.config.num_moe_experts) // parallel_state.get_expert_model_parallel_world_size()
    return local * int(parallel_state.get_expert_model_parallel_rank())


def tensor_parallel(name: str) -> tuple[int, int]:
    """Rank and number of ranks that share this parameter."""
    if EXPERT.search(name):
        rank, size = (
            parallel_state.get_expert_tensor_parallel_rank(),
            parallel_state.get_expert_tensor_parallel_world_size(),
        )
        return int(rank or 0), int(size or 1)
    return parallel_state.get_tensor_model_parallel_rank(), parallel_state.get_tensor_model_parallel_world_size()


@torch.no_grad()
def load(chunks: Sequence[nn.Module], reader: HfReader, weights: WeightMap, shapes: Shapes, ties_head: bool) -> None:
    """Fills this rank's part. A value head that the model does not have stays as it is (zeros)."""
    for name, parameter in global_parameters(chunks):
        entry = weights.entry(name)
        names = entry.hf_names
        if name == HEAD and ties_head:
            names = weights.entry(EMBEDDING).hf_names
        if names[0] in VALUE_HEAD and names[0] not in reader:
            continue
        rank, size = tensor_parallel(name)
        part = entry.rule.split([reader.get(n, entry.expert) for n in names], rank, size, shapes)
        if part.shape != parameter.shape:
            raise StrategyError(
                f"{name} is {tuple(parameter.shape)} here, its part of {', '.join(names)} {tuple(part.shape)}"
            )
        parameter.copy_(part)


@dataclass(frozen=True)
class Part:
    """One tensor-parallel part of a parameter, and the rank that sends it."""

    owner: int
    shape: tuple[int, ...]
    dtype: torch.dtype


class Exporter:
    """Full Hugging Face tensors on rank 0, or on all ranks, whatever the layout: for every parameter, one rank of each
    tensor-parallel part sends it. All ranks know the whole list, so nobody waits for one who has nothing to send."""

    RECEIVER = 0

    def __init__(
        self,
        parameters: Mapping[str, nn.Parameter],
        entry: Callable[[str], Entry],
        shapes: Shapes,
        device: torch.device,
        value: Callable[[str, torch.Tensor], torch.Tensor] = lambda name, parameter: parameter.detach(),
        changed: Collection[str] = (),
    ):
        """`parameters`: this rank's, by their names in the whole model, on `device`; `entry` says what they are there.
        `value`: what is sent for one of them, in its shape and dtype; `changed`: those of which that changes, though
        they are frozen."""
        self._mine, self._value = dict(parameters), value
        self._shapes, self._device = shapes, device
        self._rank = dist.get_rank()
        self._plan = self._agree(entry)
        self.trained = self._agree_on_trained(changed)

    @property
    def hf_names(self) -> list[str]:
        """Names of all tensors, on every rank."""
        return list(dict.fromkeys(name for _, entry, _ in self._plan for name in entry.hf_names))

    def _agree_on_trained(self, changed: Collection[str]) -> set[str]:
        """Hugging Face names of what training changes on some rank."""
        everybody: list[list[str]] = [[] for _ in range(dist.get_world_size())]
        dist.all_gather_object(everybody, [n for n, p in self._mine.items() if p.requires_grad or n in changed])
        trained = {name for names in everybody for name in names}
        return {hf_name for name, entry, _ in self._plan if name in trained for hf_name in entry.hf_names}

    def _agree(self, entry_of: Callable[[str], Entry]) -> list[tuple[str, Entry, list[Part]]]:
        described = {name: (tensor_parallel(name)[0], tuple(p.shape), p.dtype) for name, p in self._mine.items()}
        everybody: list[dict[str, tuple[int, tuple[int, ...], torch.dtype]]] = [
            {} for _ in range(dist.get_world_size())
        ]
        dist.all_gather_object(everybody, described)
        parts: dict[str, dict[int, Part]] = {}
        for owner, held in enumerate(everybody):
            for name, (part, shape, dtype) in held.items():
                parts.setdefault(name, {}).setdefault(part, Part(owner, shape, dtype))
        plan = []
        for name in parts:
            entry = entry_of(name)
            pieces = [parts[name][i] for i in sorted(parts[name])]
            plan.append((name, entry, pieces if entry.rule.is_split else pieces[:1]))
        return sorted(plan, key=lambda item: item[1].order)

    def _local(self, name: str) -> torch.Tensor:
        return self._value(name, self._mine[name])

    @torch.no_grad()
    def tensors(
        self, everywhere: bool = False, only: Collection[str] | None = None
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """(Hugging Face name, full tensor) in Hugging Face's order on every rank, which must all iterate to the end.
        Unless `everywhere`, the tensors of ranks other than 0 have a shape and no content (device meta). `only`: names
        of what is wanted; the rest stays where it is."""
        collect = self._spread if everywhere else self._collect
        plan = [step for step in self._plan if only is None or any(name in only for name in step[1].hf_names)]
        for _, group in groupby(plan, key=lambda item: item[1].order[:-1]):
            together = list(group)
            merged = (
                list(zip(entry.hf_names, entry.rule.merge(collect(name, parts), self._shapes), strict=True))
                for name, entry, parts in together
            )
            if together[0][1].expert is not None:  # one parameter, of every expert
                yield from _stacked(merged, len(together))
                continue
            for one_of_each in zip_longest(*merged):  # a weight, its bias; the next weight, its bias
                yield from (item for item in one_of_each if item is not None)

    def _spread(self, name: str, parts: Sequence[Part]) -> list[torch.Tensor]:
        """Every part by broadcast: each rank receives the whole model once, the bytes of rank 0's own collecting."""
        tensors, sends = [], []
        for part in parts:
            if part.owner == self._rank:
                tensors.append(self._local(name).contiguous())
            else:
                tensors.append(torch.empty(part.shape, dtype=part.dtype, device=self._device))
            sends.append(dist.broadcast(tensors[-1], part.owner, async_op=True))
        for send in sends:
            if send is not None:
                send.wait()
        return tensors

    def _collect(self, name: str, parts: Sequence[Part]) -> list[torch.Tensor]:
        """Sends this rank's parts to rank 0, which returns all of them. Other ranks return empty tensors."""
        if self._rank != self.RECEIVER:
            mine = [self._local(name).contiguous() for p in parts if p.owner == self._rank]  # kept until they are sent
            _exchange([dist.P2POp(dist.isend, tensor, self.RECEIVER) for tensor in mine])
            return [torch.empty(part.shape, dtype=part.dtype, device="meta") for part in parts]
        tensors, receives = [], []
        for part in parts:
            if part.owner == self._rank:
                tensors.append(self._local(name))
                continue
            tensors.append(torch.empty(part.shape, dtype=part.dtype, device=self._device))
            receives.append(dist.P2POp(dist.irecv, tensors[-1], part.owner))
        _exchange(receives)
        return tensors


def _exchange(transfers: list[dist.P2POp]) -> None:
    """Waits for these sends or receives. As a batch they go through the communicator of all ranks, which `_agree` has
    opened; single ones would open one for every pair, with buffers of its own on the receiver's GPU."""
    if transfers:
        for transfer in dist.batch_isend_irecv(transfers):
            transfer.wait()


def _stacked(experts: Iterable[list[tuple[str, torch.Tensor]]], count: int) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors of all `count` experts, from the slices of one after the other."""
    wholes: dict[str, torch.Tensor] = {}
    for number, slices in enumerate(experts):
        for name, tensor in slices:
            if name not in wholes:
                wholes[name] = tensor.new_empty(count, *tensor.shape)
            wholes[name][number] = tensor
    yield from wholes.items()
