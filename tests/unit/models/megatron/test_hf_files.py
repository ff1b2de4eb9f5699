"""A model that a Megatron trainer writes, beside the one that it began with."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import Qwen3Config

from roll.configs.roles import Head
from roll.models.megatron.hf_files import write_model

HEADS = {"mtp.fc.weight": torch.ones(2, 2), "model.layers.2.eh_proj.weight": torch.full((2, 4), 2.0)}
TRAINED = {"model.layers.1.mlp.up_proj.weight": torch.full((4, 2), 3.0)}


@pytest.mark.parametrize(("head", "beside"), [("lm", HEADS), ("value", {})])
def test_a_saved_policy_keeps_the_heads_for_further_tokens_of_its_start(
    head: Head, beside: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    """As they were, and no more of its start: weights of layers are those that were trained. A critic predicts no
    tokens."""
    start, saved = tmp_path / "start", tmp_path / "saved"
    saved.mkdir()
    config = Qwen3Config(num_hidden_layers=2, hidden_size=2, intermediate_size=4)
    config.save_pretrained(start)
    old = {name: torch.zeros_like(weights) for name, weights in TRAINED.items()}
    save_file(old | HEADS, start / "model.safetensors", metadata={"format": "pt"})
    write_model(saved, str(start), config, head, TRAINED.items())
    got, want = load_file(saved / "model.safetensors"), TRAINED | beside
    assert got.keys() == want.keys()
    assert all(torch.equal(got[name], want[name]) for name in want)
