"""A model that a Megatron trainer writes, beside the one that it began with."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import Qwen3Config

from roll.configs.sections.model import Head, ModelArgs
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
    write_model(saved, ModelArgs(model_name_or_path=str(start)), config, head, TRAINED.items())
    got, want = load_file(saved / "model.safetensors"), TRAINED | beside
    assert got.keys() == want.keys()
    assert all(torch.equal(got[name], want[name]) for name in want)


def test_what_a_head_repeats_of_the_model_is_saved_as_the_model_is_now(tmp_path: Path) -> None:
    """The head itself is as it was; a copy that was another tensor from the start, too."""
    start, saved = tmp_path / "start", tmp_path / "saved"
    saved.mkdir()
    config = Qwen3Config(num_hidden_layers=2, hidden_size=2, intermediate_size=4)
    config.save_pretrained(start)
    at, ones = "model.layers.2", torch.ones(3, 2)
    trunk = {"model.embed_tokens.weight": torch.zeros(3, 2), "lm_head.weight": torch.zeros(3, 2)}
    head = {f"{at}.embed_tokens.weight": torch.zeros(3, 2), f"{at}.shared_head.head.weight": ones}
    save_file(trunk | head | {f"{at}.eh_proj.weight": 2 * ones}, start / "model.safetensors", metadata={"format": "pt"})
    write_model(
        saved,
        ModelArgs(model_name_or_path=str(start)),
        config,
        "lm",
        {name: tensor + 5 for name, tensor in trunk.items()}.items(),
    )
    got = load_file(saved / "model.safetensors")
    assert got.keys() == trunk.keys() | head.keys() | {f"{at}.eh_proj.weight"}
    assert torch.equal(got[f"{at}.embed_tokens.weight"], 5 * ones)
    assert torch.equal(got[f"{at}.shared_head.head.weight"], ones)
