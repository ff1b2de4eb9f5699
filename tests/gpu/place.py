"""What a check is given: devices of its own, a directory, small models, ranks."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.gpu.check import Device

if TYPE_CHECKING:
    from tests.helpers.processes import RankPool

SHAPE_OF_HALF_A_BILLION = {
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "vocab_size": 151_936,
}
"""Qwen2.5-0.5B's: 494 million parameters."""
SHAPE_OF_ONE_AND_A_HALF_BILLION = {
    "hidden_size": 1536,
    "intermediate_size": 8960,
    "num_hidden_layers": 28,
    "num_attention_heads": 12,
    "num_key_value_heads": 2,
    "vocab_size": 151_936,
}
"""Qwen2.5-1.5B's: 1,544 million parameters."""
SHAPE_OF_SEVEN_BILLION = {
    "hidden_size": 3584,
    "intermediate_size": 18_944,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "vocab_size": 152_064,
    "tie_word_embeddings": False,
}
"""Qwen2.5-7B's: 7,616 million parameters."""
SHAPE_OF_A_REHEARSAL = {
    "hidden_size": 128,
    "intermediate_size": 384,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 1024,
}


def seconds_of(work: Callable[[], object], times: int = 1) -> float:
    """The mean of so many calls, with what they give the device to do."""
    import torch

    wait = torch.cuda.synchronize if torch.cuda.is_initialized() else lambda: None
    wait()
    started = time.perf_counter()
    for _ in range(times):
        work()
    wait()
    return (time.perf_counter() - started) / times


class CannotRun(Exception):
    """Why a check cannot run here, where only it can know."""


@dataclass(frozen=True)
class Place:
    """`devices`: names of its GPUs, or of slots in a rehearsal on a CPU."""

    device: Device
    devices: tuple[str, ...]
    directory: Path

    @property
    def on_cuda(self) -> bool:
        return self.device == "cuda"

    def ranks(self, count: int) -> RankPool:
        from tests.helpers.processes import RankPool

        return RankPool(count, init_process_group=False, gpus=self.devices[:count] if self.on_cuda else ())

    def tiny_model(self, **options: Any) -> Path:
        """Random Qwen2, 128 wide, 2 layers, 4 heads and 2 key-value heads, tied, vocabulary 296."""
        from roll.models.tiny import build_model, build_tokenizer, save_pretrained

        tokenizer = build_tokenizer()
        shape: dict[str, Any] = {"hidden_size": 128, "num_heads": 4, "num_kv_heads": 2} | options
        return save_pretrained(self.directory / "model", build_model(tokenizer, **shape), tokenizer)

    def mixture(self, **options: Any) -> Path:
        """Random Qwen3-MoE, 64 wide, 2 layers, of whose 4 experts a token takes 2; the same vocabulary."""
        from roll.models.tiny import build_tokenizer
        from tests.parity.megatron import models

        shape = {"vocab_size": 296, "hidden_size": 64, "moe_intermediate_size": 32, "max_position_embeddings": 2048}
        directory = models.make(self.directory / "mixture", "qwen3_moe", **(shape | options))
        build_tokenizer().save_pretrained(directory)
        return directory

    def shape(self, of_model: dict[str, int]) -> dict[str, Any]:
        """Settings of a Qwen2 in this shape, with tied embeddings unless it says otherwise; in a tiny one in a
        rehearsal."""
        shape = of_model if self.on_cuda else SHAPE_OF_A_REHEARSAL
        return {"max_position_embeddings": 32_768, "tie_word_embeddings": True} | shape

    def large_model(self, of_model: dict[str, int] = SHAPE_OF_HALF_A_BILLION) -> Path:
        """Random Qwen2 in bf16; a tiny one in a rehearsal."""
        import torch
        from transformers import Qwen2Config, Qwen2ForCausalLM

        from roll.models.tiny import build_tokenizer, save_pretrained

        tokenizer = build_tokenizer()
        shape = self.shape(of_model)
        others: dict[str, Any] = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
        config = Qwen2Config(**shape, bos_token_id=None, **others)
        torch.manual_seed(0)
        with torch.device(self.device):
            model = Qwen2ForCausalLM(config).bfloat16()
        directory = save_pretrained(self.directory / "large", model.cpu(), tokenizer)
        if self.on_cuda:
            torch.cuda.empty_cache()  # the device is the check's
        _name_every_token(directory / "tokenizer.json", shape["vocab_size"])
        return directory


def _name_every_token(path: Path, vocab_size: int) -> None:
    """Gives the tokens that the model has and the tokenizer lacks a text: engines turn what they sample into text."""
    content = json.loads(path.read_text())
    known = {*content["model"]["vocab"].values(), *(token["id"] for token in content["added_tokens"])}
    content["model"]["vocab"] |= {f"w{number}": number for number in range(vocab_size) if number not in known}
    path.write_text(json.dumps(content))
