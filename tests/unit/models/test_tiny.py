"""The tiny models and the task of the demo."""

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

from roll.models.tiny import ARCHITECTURES, build_model, build_tokenizer
from tests.helpers.cases import cases


@pytest.mark.parametrize("arch", ARCHITECTURES)
@cases("text")
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


def test_training_and_test_prompts_are_distinct(sort_task: ModuleType) -> None:
    train, test = sort_task.make_data(sort_task.Settings())
    assert {row.ground_truth for row in train}.isdisjoint(row.ground_truth for row in test)
    assert (len(train), len(test)) == (5263, 512)
    assert all(row.ground_truth == "".join(sorted(row.prompt)) for row in train + test)
    train, _ = sort_task.make_data(sort_task.Settings(min_digits=3, max_digits=12, prompts_per_length=100))
    prompts = [row.prompt for row in train]
    assert len(set(prompts)) == len(prompts)
    assert {len(prompt) for prompt in prompts} == set(range(3, 13))
    rows = [sort_task.Row(prompt, "".join(sorted(prompt)), "sort") for prompt in ("3142", "7777", "0001", "90")]
    pairs = sort_task.make_pairs(rows, seed=0)
    assert [pair.prompt for pair in pairs] == ["3142", "0001", "90"]  # of 7777 there is one order
    assert [pair.chosen for pair in pairs] == [f"<answer>{digits}</answer>" for digits in ("1234", "0001", "09")]
    for pair in pairs:
        assert pair.rejected != pair.chosen and sorted(pair.rejected) == sorted(pair.chosen)
    assert pairs == sort_task.make_pairs(rows, seed=0)


def test_preferences_are_the_right_answer_and_wrong_ones_of_every_kind(sort_task: ModuleType) -> None:
    rows = [sort_task.Row("3142", "1234", "sort"), sort_task.Row("77", "77", "sort")]
    pairs = sort_task.make_preferences(rows, seed=0, pairs_per_row=50)
    assert [pair.prompt for pair in pairs] == ["3142"] * 50 + ["77"] * 50
    assert {pair.chosen for pair in pairs} == {"<answer>1234</answer>", "<answer>77</answer>"}
    wrong = [pair.rejected.removeprefix("<answer>").removesuffix("</answer>") for pair in pairs[:50]]
    assert {len(digits) for digits in wrong} == {3, 4, 5} and "1234" not in wrong
    assert any(sorted(digits) == list("1234") for digits in wrong), "another order"
    assert any(list(digits) == sorted(digits) and len(digits) == 4 for digits in wrong), "other digits, in order"
    assert pairs == sort_task.make_preferences(rows, seed=0, pairs_per_row=50)


def test_preparing_twice_does_the_work_once_and_other_settings_do_it_again(
    sort_task: ModuleType, tmp_path: Path
) -> None:
    settings = sort_task.Settings(steps=2, batch_size=8)
    assert sort_task.prepare(tmp_path, settings)
    weights = (tmp_path / "model" / "model.safetensors").read_bytes()
    assert not sort_task.prepare(tmp_path, settings)
    assert sort_task.prepare(tmp_path, sort_task.Settings(steps=2, batch_size=8, seed=1))
    assert (tmp_path / "model" / "model.safetensors").read_bytes() != weights
    assert sort_task.prepare(tmp_path, settings)  # the first seed again: the same model, byte for byte
    assert (tmp_path / "model" / "model.safetensors").read_bytes() == weights
    assert json.loads((tmp_path / "test.jsonl").read_text().splitlines()[0]).keys() == {
        "prompt",
        "ground_truth",
        "tag",
    }
