"""GGUF files: what transformers reads of one is what a run trains."""

from pathlib import Path

import pytest
import torch
from gguf import GGUFWriter
from safetensors.torch import load_file
from transformers import AutoTokenizer

from roll.errors import ConfigError
from roll.run.start.gguf import gguf_folder
from roll.run.start.load import with_gguf_folders

HIDDEN, HEADS, WIDE = 16, 2, 32
TOKENS = ["<|endoftext|>", "a", "b", "ab", "c"]
MATRICES = {
    "attn_q": (HIDDEN, HIDDEN),
    "attn_k": (HIDDEN, HIDDEN),
    "attn_v": (HIDDEN, HIDDEN),
    "attn_output": (HIDDEN, HIDDEN),
    "ffn_gate": (WIDE, HIDDEN),
    "ffn_up": (WIDE, HIDDEN),
    "ffn_down": (HIDDEN, WIDE),
}


def write_llama(path: Path) -> dict[str, torch.Tensor]:
    """Write a Llama of one layer, and return its weights by their names in the file."""
    torch.manual_seed(0)
    weights = {f"blk.0.{name}.weight": torch.randn(shape) for name, shape in MATRICES.items()}
    weights |= {f"blk.0.{name}_norm.weight": torch.rand(HIDDEN) for name in ("attn", "ffn")}
    weights |= {"token_embd.weight": torch.randn(len(TOKENS), HIDDEN), "output_norm.weight": torch.rand(HIDDEN)}
    writer = GGUFWriter(path, "llama")
    writer.add_block_count(1)
    writer.add_context_length(64)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(WIDE)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(TOKENS))
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(TOKENS)
    writer.add_token_types([3, *[1] * (len(TOKENS) - 1)])
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(0)
    writer.add_chat_template("{{ messages[0]['content'] }}")
    for name, weight in weights.items():
        writer.add_tensor(name, weight.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return weights


def test_a_gguf_file_becomes_a_folder_with_its_weights_and_tokenizer_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    file = tmp_path / "tiny.gguf"
    weights = write_llama(file)
    tree = with_gguf_folders({"pretrain": str(file), "critic": {"model_args": {"tokenizer_path": str(file)}}})
    folder = tree["pretrain"]
    assert tree["critic"]["model_args"]["tokenizer_path"] == folder
    loaded = load_file(Path(folder, "model.safetensors"))
    up = loaded["model.layers.0.mlp.up_proj.weight"]
    assert torch.equal(up, weights["blk.0.ffn_up.weight"].bfloat16())
    # llama.cpp stores the two halves of a head in turn
    query = weights["blk.0.attn_q.weight"].view(HEADS, HIDDEN // HEADS // 2, 2, HIDDEN).transpose(1, 2)
    assert torch.equal(loaded["model.layers.0.self_attn.q_proj.weight"], query.reshape(HIDDEN, HIDDEN).bfloat16())
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer("abc")["input_ids"] == [3, 4]
    assert tokenizer.chat_template == "{{ messages[0]['content'] }}"
    assert [path.name for path in Path(folder).parent.iterdir()] == [Path(folder).name], "nothing half done is left"


def test_what_is_no_model_is_said_with_its_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    nothing = {"model_args": {"model_name_or_path": str(tmp_path / "nothing.gguf")}}
    with pytest.raises(
        ConfigError, match=r"^critic\.model_args\.model_name_or_path: .*nothing\.gguf cannot be read: No such file"
    ):
        with_gguf_folders({"critic": nothing})
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + b"\0" * 64)
    with pytest.raises(ConfigError, match=r"broken\.gguf cannot be read as a model"):
        gguf_folder(str(broken))
    assert list((tmp_path / ".cache/roll/gguf").iterdir()) == []
