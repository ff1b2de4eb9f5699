"""The files of a start and of checkpoints."""

from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)
from transformers import AutoConfig, AutoModelForCausalLM

from roll.configs.sections.model import ModelArgs
from roll.errors import StrategyError
from roll.models.copied_files import start_files
from roll.models.loading import load_policy, write_hf_model
from roll.models.megatron.hf_files import write_model
from roll.models.weight_files import PlainReader

LLAMA_2 = '{"do_sample": false, "temperature": 0.9,\n "top_p": 0.6, "eos_token_id": [2, 7], "their_own": 1}'
BESIDE = {
    "generation_config.json": LLAMA_2,
    "chat_template.jinja": "{% for m in messages %}<{{ m.content }}>{% endfor %}\n",
    "additional_chat_templates/tools.jinja": "{{ tools }}",
    "special_tokens_map.json": '{"eos_token": "<|im_end|>"}',
    "preprocessor_config.json": '{"size": 3}',
    "video_preprocessor_config.json": "{}",
    "tokenizer.model": "not really",
    "vocab.json": '{"a": 0}',
    "merges.txt": "#version: 0.2\n",
    "tokenization_own.py": "raise RuntimeError('never run')\n",
    "LICENSE.txt": "do what you like",
}
NOT_TAKEN = {"README.md": "of another model", "training_args.bin": "x", "rows.json": "[]", "train.py": ""}


def start_of(tiny_model_dir: Path, at: Path) -> Path:
    shutil.copytree(tiny_model_dir, at)
    for name, text in (BESIDE | NOT_TAKEN).items():
        (at / name).parent.mkdir(exist_ok=True)
        (at / name).write_text(text)
    return at


def save_by_hf(args: ModelArgs, out: Path) -> None:
    model = load_policy(args)
    parameters = dict(model.module.named_parameters())
    weights = [(export.name, parameters[export.weight].detach()) for export in model.exports]
    write_hf_model(out, model, args, "lm", dict(model.in_checkpoint_form(weights)), {})


def save_by_megatron(args: ModelArgs, out: Path) -> None:
    out.mkdir()
    tensors = load_file(Path(str(args.model_name_or_path)) / "model.safetensors")
    write_model(out, args, AutoConfig.from_pretrained(str(args.model_name_or_path)), "lm", tensors.items())


@pytest.mark.parametrize("save", [save_by_hf, save_by_megatron])
def test_a_saved_model_holds_the_files_of_its_start_byte_for_byte(
    save: Callable[[ModelArgs, Path], None], tiny_model_dir: Path, tmp_path: Path
) -> None:
    """Among them a generation_config.json that transformers refuses to write."""
    start, out = start_of(tiny_model_dir, tmp_path / "start"), tmp_path / "out"
    save(ModelArgs(model_name_or_path=str(start), dtype="fp32"), out)
    taken = {*BESIDE, "tokenizer.json", "tokenizer_config.json"}
    for name in taken:
        assert (out / name).read_bytes() == (start / name).read_bytes(), name
    written = {str(file.relative_to(out)) for file in out.rglob("*") if file.is_file()}
    assert written == taken | {"config.json", "model.safetensors"}
    before, after = (AutoModelForCausalLM.from_pretrained(path).state_dict() for path in (start, out))
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_a_start_without_a_generation_config_gets_none(tiny_model_dir: Path, tmp_path: Path) -> None:
    start, out = tmp_path / "start", tmp_path / "out"
    shutil.copytree(tiny_model_dir, start)
    (start / "generation_config.json").unlink(missing_ok=True)
    save_by_hf(ModelArgs(model_name_or_path=str(start), dtype="fp32"), out)
    assert not (out / "generation_config.json").exists()


def test_the_files_of_a_tokenizer_come_from_where_it_is(tiny_model_dir: Path, tmp_path: Path) -> None:
    """None of the model's own is beside them: a tokenizer.model of another vocabulary would be."""
    start, other = start_of(tiny_model_dir, tmp_path / "start"), tmp_path / "other"
    other.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(start / name, other / name)
    (other / "generation_config.json").write_text(json.dumps({"of": "another model"}))
    args = ModelArgs(model_name_or_path=str(start), tokenizer_path=str(other))
    found = {file.name: folder for folder, file in start_files(args)}
    assert found["tokenizer.json"] == other and "tokenizer.model" not in found
    assert found["generation_config.json"] == start


class Touch:
    """Makes a file where it is unpickled."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def index() -> Metadata:
    chunk = ChunkStorageMetadata(torch.Size([0]), torch.Size([4]))
    dtypes = (torch.float32, torch.bfloat16, torch.uint8)
    tensors: Any = {
        str(dtype): TensorStorageMetadata(TensorProperties(dtype=dtype), torch.Size([4]), [chunk]) for dtype in dtypes
    }
    place = _StorageInfo("__0_0.distcp", 0, 16)
    return Metadata(
        tensors | {"a": BytesStorageMetadata()}, None, {MetadataIndex("a"): place}, StorageMeta(Path("/a"), "b")
    )


def test_an_index_is_read_as_it_was_written_and_runs_nothing(tmp_path: Path) -> None:
    (tmp_path / ".metadata").write_bytes(pickle.dumps(index()))
    assert PlainReader(tmp_path).read_metadata() == index()
    (tmp_path / ".metadata").write_bytes(pickle.dumps(Touch(tmp_path / "ran")))
    problem = rf"{tmp_path}/\.metadata cannot be read: it asks for pathlib\.Path\.touch"
    with pytest.raises(StrategyError, match=problem):
        PlainReader(tmp_path).read_metadata()
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("content", [b"", pickle.dumps(index())[:-40], b"\xff" * 40, pickle.dumps({"a": 1})])
def test_a_damaged_index_is_named(content: bytes, tmp_path: Path) -> None:
    (tmp_path / ".metadata").write_bytes(content)
    with pytest.raises(StrategyError, match=rf"{tmp_path}/\.metadata (cannot be read|is not the index)"):
        PlainReader(tmp_path).read_metadata()
