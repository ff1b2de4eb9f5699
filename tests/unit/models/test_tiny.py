"""The tiny models and tokenizer behave like real ones when they are loaded by their directory."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

from roll.models.tiny import ARCHITECTURES, build_model, build_tokenizer

TEXTS = [
    "3142",
    "<|im_start|>user\n3142<|im_end|>\n<|im_start|>assistant\n<answer>1234</answer><|im_end|>",
    "P_OO\n_O__\n__O_\nO__G",
    "Hello  world, it's\n\n é √ 12345",
]


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("text", TEXTS)
def test_tokenizer_splits_the_same_after_auto_tokenizer_has_loaded_it(
    make_tiny_model_dir: Callable[..., Path], tiny_tokenizer: PreTrainedTokenizerFast, arch: str, text: str
) -> None:
    loaded = AutoTokenizer.from_pretrained(make_tiny_model_dir(arch=arch))
    assert loaded(text)["input_ids"] == tiny_tokenizer(text)["input_ids"]
    assert loaded.decode(loaded(text)["input_ids"]) == text


def test_digits_and_tags_are_single_tokens(tiny_tokenizer: PreTrainedTokenizerFast) -> None:
    assert tiny_tokenizer.tokenize("<answer>1234</answer>") == ["<answer>", "1", "2", "3", "4", "</answer>"]


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("tied", [True, False])
def test_saved_model_loads_with_the_same_logits(
    make_tiny_model_dir: Callable[..., Path], tiny_tokenizer: PreTrainedTokenizerFast, arch: str, tied: bool
) -> None:
    directory = make_tiny_model_dir(arch=arch, tie_word_embeddings=tied, seed=3)
    loaded = AutoModelForCausalLM.from_pretrained(directory)
    built = build_model(
        tiny_tokenizer, arch=arch, tie_word_embeddings=tied, seed=3, hidden_size=128, num_heads=4, num_kv_heads=2
    )
    input_ids = torch.tensor([tiny_tokenizer("3142")["input_ids"]])
    with torch.no_grad():
        torch.testing.assert_close(loaded(input_ids).logits, built(input_ids).logits, rtol=0, atol=1e-6)


def test_model_depends_on_the_seed_and_leaves_the_random_state_alone() -> None:
    tokenizer = build_tokenizer()
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    first, second, other = (build_model(tokenizer, seed=seed).state_dict() for seed in (0, 0, 1))
    assert torch.equal(torch.rand(1), expected)
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not torch.equal(first["lm_head.weight"], other["lm_head.weight"])
