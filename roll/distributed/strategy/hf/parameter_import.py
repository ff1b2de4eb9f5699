"""New weights into the parameters of a Hugging Face model, in place."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from roll.errors import StrategyError

_NAMES_SHOWN = 5
# A layer's experts are one parameter [experts, out, in] in memory, and a matrix each in the model's files.
_PARTS = {"gate_up_proj": ("gate_proj", "up_proj"), "down_proj": ("down_proj",)}
_MIXTRAL_NAMES = {"mlp.": "block_sparse_moe.", "gate_proj.": "w1.", "up_proj.": "w3.", "down_proj.": "w2."}


@dataclass(frozen=True)
class _Target:
    """A parameter or buffer, or matrix `part` of `num_parts` of one of its experts."""

    parameter: torch.Tensor
    expert: int | None = None
    part: int = 0
    num_parts: int = 1

    @property
    def tensor(self) -> torch.Tensor:
        if self.expert is None:
            return self.parameter
        return self.parameter[self.expert].chunk(self.num_parts)[self.part]


class ParameterImport:
    """One update after the other: `begin`, any number of `add`, `finish`. In a whole update every parameter
    must be given once; of tied parameters any one name will do. Experts may come as one tensor or one by one. Buffers,
    which no training changes, may be given."""

    def __init__(self, model: torch.nn.Module):
        self._model = model
        self._targets = dict(_targets(model))
        self._missing: dict[int, set[tuple[int | None, int]]] = {}

    def begin(self, whole: bool = True) -> None:
        self._missing = {}
        if not whole:
            return
        for target in self._targets.values():
            if not isinstance(target.parameter, torch.nn.Parameter):
                continue
            parts = self._missing.setdefault(id(target.parameter), set())
            if target.expert is not None:
                parts.add((target.expert, target.part))

    @torch.no_grad()
    def add(self, name: str, tensor: torch.Tensor) -> None:
        """Copies one tensor (converted to the parameter's dtype). StrategyError for an unknown name or another
        shape."""
        target = self._targets.get(name)
        if target is None:
            raise StrategyError(f"weight update: the rollout model has no parameter {name!r}")
        if target.tensor.shape != tensor.shape:
            raise StrategyError(
                f"weight update: {name!r} is {tuple(tensor.shape)}, the rollout model's is {tuple(target.tensor.shape)}"
            )
        target.tensor.copy_(tensor)
        parts = self._missing.get(id(target.parameter), set())
        parts.discard((target.expert, target.part))
        if target.expert is None or not parts:
            self._missing.pop(id(target.parameter), None)

    def finish(self) -> None:
        """StrategyError if a parameter was not given: the model would be a mixture of two versions."""
        names = [name for name, parameter in self._model.named_parameters() if id(parameter) in self._missing]
        if names:
            shown = ", ".join(names[:_NAMES_SHOWN]) + (", ..." if len(names) > _NAMES_SHOWN else "")
            raise StrategyError(f"weight update: {len(names)} parameters were not sent: {shown}")


def _targets(model: torch.nn.Module) -> Iterator[tuple[str, _Target]]:
    """What may be given, by name: as the model names it, and as its files do."""
    is_mixtral = getattr(getattr(model, "config", None), "model_type", "") == "mixtral"
    for name, parameter in model.named_parameters(remove_duplicate=False):
        yield name, _Target(parameter)
        prefix, _, last = name.rpartition(".")
        if prefix.endswith(".experts") and last in _PARTS:
            for expert in range(len(parameter)):
                for part, file_name in enumerate(_PARTS[last]):
                    stored = f"{prefix}.{expert}.{file_name}.weight"
                    target = _Target(parameter, expert, part, len(_PARTS[last]))
                    yield (_of_mixtral(stored) if is_mixtral else stored), target
        elif is_mixtral and ".mlp." in name:
            yield _of_mixtral(name), _Target(parameter)
    yield from ((name, _Target(buffer)) for name, buffer in model.named_buffers())


def _of_mixtral(name: str) -> str:
    for ours, theirs in _MIXTRAL_NAMES.items():
        name = name.replace(ours, theirs)
    return name
