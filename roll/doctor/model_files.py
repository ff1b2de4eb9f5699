"""The files of the models that a run names: the tokenizer is there, and weights are whole."""

from __future__ import annotations

import json
import struct
from collections.abc import Collection, Iterator
from pathlib import Path

from roll.configs.memory.show import gigabytes
from roll.configs.sections.run import RunConfig
from roll.doctor.finding import Finding
from roll.run.saving.model_files import read_model_config
from roll.utils.files import look_at
from roll.utils.hub import is_hub_id

_INDEX = "model.safetensors.index.json"
_LARGEST_HEADER = 100_000_000  # as the format has it


def model_findings(config: RunConfig, ignored: Collection[str] = ()) -> Iterator[Finding]:
    """Each model once. That a directory is there, with config.json, is checked before a start."""
    told: set[str] = set()
    for role, worker in config.model_roles.items():
        name = worker.model_args.model_name_or_path
        if name is None or name in told or ignored:
            continue
        told.add(name)
        key = f"{role}.model_args.model_name_or_path"
        if not is_hub_id(name):
            if look_at(name).is_directory:
                yield from weight_findings(Path(name), key)
        elif read_model_config(worker.model_args)[0] is None:
            what = f"{name} is not in the hub's cache of this machine: a run downloads it first"
            yield Finding("hint", what, key, f"`hf download {name}` before the run")
        else:
            yield Finding("ok", f"{name} is in the hub's cache")


def weight_findings(directory: Path, key: str) -> Iterator[Finding]:
    index = directory / _INDEX
    named = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()) if index.is_file() else set()
    files = sorted({*directory.glob("*.safetensors"), *(directory / name for name in named)})
    if not files:
        others = any(directory.glob("*.bin"))
        level = "hint" if others else "problem"
        what = f"{directory} holds {'weights as *.bin, and no *.safetensors' if others else 'no weights'}"
        yield Finding(level, what, key, "Name a directory with *.safetensors (`hf download` gets them)")
        return
    wrong = [text for file in files if (text := damage(file))]
    fix = "Get the file again: a download or a copy was interrupted"
    yield from (Finding("problem", text, key, fix) for text in wrong)
    if not wrong:
        size = sum(file.stat().st_size for file in files)
        yield Finding("ok", f"{directory}: {gigabytes(size)} GB of weights in {len(files)} files, all complete")


def damage(file: Path) -> str:
    """What is wrong with a file of safetensors, by its header and its size; empty for a whole one."""
    if not file.is_file():
        return f"{file} is missing, which {_INDEX} names"
    size = file.stat().st_size
    with file.open("rb") as stream:
        start = stream.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else _LARGEST_HEADER + 1
        if length > _LARGEST_HEADER:
            return f"{file} is no safetensors file"
        try:
            header = json.loads(stream.read(length))
            end = max((entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"), default=0)
        except (ValueError, TypeError, KeyError, AttributeError):
            return f"{file} has a header that cannot be read"
    whole = 8 + length + end
    return "" if size == whole else f"{file} has {size} bytes of {whole}"
