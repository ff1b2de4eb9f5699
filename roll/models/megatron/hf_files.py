"""Reading and writing safetensors of a Hugging Face model, a tensor or a bucket at a time."""

import copy
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    PretrainedConfig,
)

from roll.configs.sections.model import Head, ModelArgs
from roll.errors import StrategyError
from roll.models.copied_files import copy_start_files, mtp_heads, shared_copies
from roll.models.weight_files import INDEX, WHOLE, tensor_files

_BYTES_PER_FILE = 1 << 30
CHECKPOINT_FOLDER = "megatron"  # of a trainer's checkpoint directory: what Megatron itself wrote
_KINDS: Mapping[Head, Any] = {
    "lm": AutoModelForCausalLM,
    "value": AutoModelForTokenClassification,
    "reward": AutoModelForSequenceClassification,
}
_EXPERT = re.compile(r"^(.*\.experts\.)(\d+)\.(gate_proj|up_proj|down_proj)\.weight$")


class HfReader:
    """The tensors of a model directory or hub id, by name. Files are mapped, not read as a whole."""

    def __init__(self, model: str):
        self.model = model
        self._files = tensor_files(model)
        if not self._files:
            raise StrategyError(f"{model} has neither {WHOLE} nor {INDEX}; megatron reads safetensors only")
        self._open: dict[str, Any] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._files or self._fused(name) is not None

    def get(self, name: str, number: int | None = None) -> torch.Tensor:
        """A tensor, or `tensor[number]` without the rest of it. StrategyError if the model has no such tensor."""
        if name in self._files:
            handle = self._handle(name)
            return handle.get_tensor(name) if number is None else handle.get_slice(name)[number]
        fused = self._fused(name)
        if fused is None:
            raise StrategyError(f"{self.model} has no tensor {name}")
        return fused

    def _handle(self, name: str) -> Any:
        file = self._files[name]
        if file not in self._open:
            self._open[file] = safe_open(file, framework="pt").__enter__()
        return self._open[file]

    def _fused(self, name: str) -> torch.Tensor | None:
        """One expert out of a tensor of all experts, as transformers 5 holds them in memory."""
        match = _EXPERT.match(name)
        if match is None:
            return None
        prefix, expert, part = match.group(1), int(match.group(2)), match.group(3)
        stored = prefix + ("down_proj" if part == "down_proj" else "gate_up_proj")
        if stored not in self._files:
            return None
        tensor = self._handle(stored).get_slice(stored)[expert]
        if part == "down_proj":
            return tensor
        return tensor.chunk(2)[0 if part == "gate_proj" else 1]


def write_model(
    directory: Path,
    args: ModelArgs,
    config: PretrainedConfig,
    head: Head,
    tensors: Iterable[tuple[str, torch.Tensor]],
) -> None:
    """Writes a directory that `from_pretrained` loads: config.json, the tensors, the other files of the start that
    `args` name, and of a policy the MTP head that the start's weights hold, as it was there unless it is
    among the tensors. What that head shares with the model is the model's. Memory stays at one file."""
    saved = copy.deepcopy(config)
    saved_class: Any = _KINDS[head]._model_mapping[type(config)]
    saved.architectures = [saved_class.__name__]
    saved.save_pretrained(directory)
    copy_start_files(args, directory)
    write_files(directory, _with_heads(tensors, str(args.model_name_or_path)) if head == "lm" else tensors)


def _with_heads(tensors: Iterable[tuple[str, torch.Tensor]], model: str) -> Iterator[tuple[str, torch.Tensor]]:
    copies, is_trained = shared_copies(model), False
    for name, tensor in tensors:
        is_trained |= name.endswith(".eh_proj.weight")
        yield name, tensor
        yield from ((copy, tensor) for copy, original in copies.items() if original == name)
    if not is_trained:
        yield from mtp_heads(model, but=copies)


def write_files(
    directory: Path, tensors: Iterable[tuple[str, torch.Tensor]], bytes_per_file: int = _BYTES_PER_FILE
) -> None:
    """Files of about one size and the index that says which tensor lies where; a single one is a plain
    model.safetensors."""
    written: list[tuple[Path, list[str]]] = []
    total = 0
    for number, part in enumerate(_in_parts(tensors, bytes_per_file), 1):
        path = directory / f"model-part{number:05d}.safetensors"
        total += sum(tensor.numel() * tensor.element_size() for tensor in part.values())
        save_file(part, path, metadata={"format": "pt"})
        written.append((path, list(part)))
    if len(written) == 1:
        written[0][0].rename(directory / WHOLE)
        return
    weight_map: dict[str, str] = {}
    for number, (path, names) in enumerate(written, 1):
        final = directory / f"model-{number:05d}-of-{len(written):05d}.safetensors"
        path.rename(final)
        weight_map |= dict.fromkeys(names, final.name)
    (directory / INDEX).write_text(json.dumps({"metadata": {"total_size": total}, "weight_map": weight_map}, indent=2))


def _in_parts(tensors: Iterable[tuple[str, torch.Tensor]], bytes_per_file: int) -> Iterator[dict[str, torch.Tensor]]:
    part: dict[str, torch.Tensor] = {}
    size = 0
    for name, tensor in tensors:
        num_bytes = tensor.numel() * tensor.element_size()
        if part and size + num_bytes > bytes_per_file:
            yield part
            part, size = {}, 0
        part[name] = tensor.detach().to("cpu", copy=True).contiguous()
        size += num_bytes
    if part:
        yield part
