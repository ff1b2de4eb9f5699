"""The policy's LoRA adapter in vLLM's worker, from memory: vLLM itself reads adapters from files alone (vLLM 0.32)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from vllm.lora.lora_model import LoRAModel
from vllm.lora.peft_helper import PEFTHelper

from roll.distributed.strategy.vllm.args import ADAPTER_ID

if TYPE_CHECKING:
    from vllm.lora.worker_manager import LRUCacheWorkerLoRAManager

_PREFIX = "base_model.model."
_A, _B = ".lora_A.weight", ".lora_B.weight"


class AdapterUpdate:
    """Collects A and s B of all layers, and puts them in the place of the adapter before."""

    def __init__(self, manager: LRUCacheWorkerLoRAManager):
        """Installs an adapter that adds nothing, so that every request can name it from the start."""
        self._manager = manager
        self._tensors: dict[str, torch.Tensor] = {}
        self._names: frozenset[str] = frozenset()  # of the last update
        self._install(manager._adapter_manager.create_dummy_lora(ADAPTER_ID, 1, manager.embedding_modules))

    def begin(self) -> None:
        self._tensors = {}

    def take(self, weights: list[tuple[str, torch.Tensor]]) -> list[tuple[str, torch.Tensor]]:
        """Those that are no adapters."""
        self._tensors |= {name: tensor.to("cpu", copy=True) for name, tensor in weights if name.endswith((_A, _B))}
        return [(name, tensor) for name, tensor in weights if not name.endswith((_A, _B))]

    def finish(self) -> list[str]:
        """Names of what was not sent, and was before, or is half of an adapter. The adapter then stays the old one."""
        tensors, self._tensors = self._tensors, {}
        halves = {name.replace(_A, _B) if name.endswith(_A) else name.replace(_B, _A) for name in tensors}
        if missing := (halves | self._names) - tensors.keys() or (set() if tensors else {"adapters"}):
            return sorted(missing)
        self._names = frozenset(tensors)
        self._install(self._model(tensors))
        return []

    def _model(self, tensors: dict[str, torch.Tensor]) -> LoRAModel:
        """Whatever alpha is, it is in B."""
        rank = next(len(tensor) for name, tensor in tensors.items() if name.endswith(_A))
        layers = sorted({name.removesuffix(_A).rpartition(".")[2] for name in tensors if name.endswith(_A)})
        helper = PEFTHelper(r=rank, lora_alpha=rank, target_modules=layers)
        helper.validate_legal(self._manager.lora_config)
        model: Any = self._manager._adapter_manager.model
        mapper = getattr(model, "hf_to_vllm_mapper", None)
        found = LoRAModel.from_lora_tensors(
            ADAPTER_ID,
            {f"{_PREFIX}{name}": tensor for name, tensor in tensors.items()},
            helper,
            device="cpu",
            dtype=self._manager.lora_config.lora_dtype,  # type: ignore[arg-type]
            model_vocab_size=self._manager.vocab_size,
            weights_mapper=mapper.get_rename_mapper() if mapper is not None else None,
        )
        if unknown := sorted(found.loras.keys() - self._layers()):
            raise ValueError(f"vllm has no adapters for {', '.join(unknown[:3])}")
        return found

    def _layers(self) -> set[str]:
        """Layers that take an adapter, by Hugging Face's names: q, k and v of one that vLLM holds in one piece."""
        manager = self._manager._adapter_manager
        return {part for name in manager.modules for part in manager.packed_modules.get(name, [name])}

    def _install(self, model: LoRAModel) -> None:
        """Pinned: an adapter without a file could not come back once another has taken its place."""
        manager = self._manager._adapter_manager
        manager.remove_adapter(ADAPTER_ID)
        manager.add_adapter(model)
        manager.activate_adapter(ADAPTER_ID)
        self._manager.pin_adapter(ADAPTER_ID)
