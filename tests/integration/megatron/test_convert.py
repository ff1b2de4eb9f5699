"""`python -m roll.commands.convert`, where it works in processes of its own as a user starts it."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import PreTrainedTokenizerFast

from roll.commands.convert import main
from tests.helpers.processes import RankPool
from tests.parity.megatron import models, prediction
from tests.parity.megatron.ranks import Run


def convert(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "roll.commands.convert", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["qwen3_moe", "gpt_oss"])
def test_weights_come_back_bit_by_bit(family: str, tmp_path: Path, tiny_tokenizer: PreTrainedTokenizerFast) -> None:
    model = models.make(tmp_path / "model", family)
    tiny_tokenizer.save_pretrained(model)
    file = model / "model.safetensors"
    save_file(load_file(file) | {"mtp.fc.weight": torch.ones(2, 2)}, file, metadata={"format": "pt"})  # no layer's
    there = convert("to_megatron", "--model", model, "--out", tmp_path / "megatron", "--dtype", "fp32")
    assert there.returncode == 0, there.stderr
    back = convert(
        "to_hf", "--checkpoint", tmp_path / "megatron", "--model", model, "--out", tmp_path / "back", "--dtype", "fp32"
    )
    assert back.returncode == 0, back.stderr
    want, got = (load_file(path / "model.safetensors") for path in (model, tmp_path / "back"))
    assert want.keys() == got.keys()
    assert all(torch.equal(want[name], got[name]) for name in want)
    assert (tmp_path / "back" / "tokenizer.json").exists()


def test_a_directory_without_a_checkpoint_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    command = ["to_hf", "--checkpoint", str(tmp_path), "--model", "any", "--out", str(tmp_path / "out")]
    assert main(command) == 1
    assert caplog.messages == [f"{tmp_path} holds no checkpoint of megatron_train: megatron/ is missing"]


def test_a_model_that_is_not_there_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    missing = str(tmp_path / "nowhere")
    assert main(["to_megatron", "--model", missing, "--out", str(tmp_path / "out")]) == 1
    assert caplog.messages[-1].startswith(f"--model {missing}, --out {tmp_path / 'out'}: ")


@pytest.mark.slow
def test_a_trained_head_for_further_tokens_comes_with_the_model(
    rank_pool: Callable[[int], RankPool], tmp_path: Path, tiny_tokenizer: PreTrainedTokenizerFast
) -> None:
    """As the trainer itself saves it, though the model it began with has another."""
    model = prediction.make(tmp_path / "model", "glm4_moe")
    tiny_tokenizer.save_pretrained(model)
    run = Run(model, {}, vocab_size=models.VOCAB_SIZE, head="standalone")
    rank_pool(1).run(prediction.saved_twice, run, tmp_path / "checkpoint", tmp_path / "saved")
    back = convert(
        "to_hf", "--checkpoint", tmp_path / "checkpoint", "--model", model, "--out", tmp_path / "back",
        "--dtype", "fp32",
    )  # fmt: skip
    assert back.returncode == 0, back.stderr
    start, want, got = (
        load_file(path / "model.safetensors") for path in (model, tmp_path / "saved", tmp_path / "back")
    )
    assert want.keys() == got.keys()
    assert all(torch.equal(want[name], got[name]) for name in want)
    assert not torch.equal(start[f"{prediction.AT}eh_proj.weight"], got[f"{prediction.AT}eh_proj.weight"])
