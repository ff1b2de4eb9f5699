"""The batched sampler against plain forward passes of the same model, one sequence at a time."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from roll.distributed.strategy.hf.sampler import Answer, BatchSampler
from roll.distributed.strategy.stop_strings import StopStrings
from roll.errors import StrategyError
from roll.types.rollout import Generation, GenerationRequest, SamplingParams

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

LENGTHS = (5, 17, 9, 30, 12, 3)


@pytest.fixture(scope="module")
def model(tiny_model_dir: Path) -> "PreTrainedModel":
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(tiny_model_dir, dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def make_sampler(model: "PreTrainedModel", tiny_tokenizer: "PreTrainedTokenizerFast") -> Callable[..., BatchSampler]:
    def make(**options: Any) -> BatchSampler:
        eos = tiny_tokenizer.convert_tokens_to_ids("<|im_end|>")
        settings: dict[str, Any] = {"model": model, "eos_token_ids": [eos], "max_model_len": 256, "max_num_seqs": 64}
        return BatchSampler(stop_strings=StopStrings.of(tiny_tokenizer), **(settings | options))

    return make


def prompt(length: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng((seed, length)).integers(3, 290, length).astype(np.int32)


def request(name: str, length: int = 9, num_samples: int = 1, **sampling: Any) -> GenerationRequest:
    options = {"max_new_tokens": 12, "seed": 100, "ignore_eos": True} | sampling
    return GenerationRequest(name, prompt(length), SamplingParams(**options), num_samples)


def answers_of(answers: Sequence[Answer]) -> dict[str, list[Generation]]:
    """By request, in the order of their numbers."""
    found: dict[str, list[Generation]] = {}
    for answer in sorted(answers, key=lambda answer: answer.index):
        found.setdefault(answer.request_id, []).append(answer.generation)
    return found


def run(sampler: BatchSampler, requests: Sequence[GenerationRequest]) -> dict[str, list[Generation]]:
    for item in requests:
        sampler.check(item)
        sampler.submit(item)
    finished: list[Answer] = []
    while sampler.has_work:
        finished += sampler.step()
    return answers_of(finished)


def forward_log_probs(
    model: "PreTrainedModel", prompt_ids: np.ndarray, generation: Generation, temperature: float = 1.0
) -> np.ndarray:
    """Of the generated tokens, by one forward pass without a cache."""
    ids = torch.from_numpy(np.concatenate([prompt_ids, generation.token_ids]).astype(np.int64))
    with torch.no_grad():
        log_probs = torch.log_softmax(model(ids[None]).logits[0].float() / temperature, -1)
    return log_probs[len(prompt_ids) - 1 : -1].gather(-1, ids[len(prompt_ids) :, None])[:, 0].numpy()


def same(one: Generation, other: Generation) -> bool:
    return one.token_ids.tolist() == other.token_ids.tolist() and one.finish_reason == other.finish_reason


def test_a_sample_does_not_depend_on_what_else_is_in_the_batch(make_sampler: Callable[..., BatchSampler]) -> None:
    """Alone, together with others, admitted while others decode, and without the other samples of the group: the same
    tokens."""
    requests = [
        request(str(length), length, 2, seed=length, max_new_tokens=5 + 3 * number, top_k=number % 3 * 4)
        for number, length in enumerate(LENGTHS)
    ]
    together = run(make_sampler(), requests)
    narrow = run(make_sampler(max_num_seqs=3), requests)  # one group at a time has room
    staggered_sampler, answers = make_sampler(), []
    for item in requests:
        staggered_sampler.submit(item)
        for _ in range(3):
            answers += staggered_sampler.step()
    while staggered_sampler.has_work:
        answers += staggered_sampler.step()
    staggered = answers_of(answers)
    halves = run(make_sampler(), [item.part(begun, 1) for item in requests for begun in range(2)])
    parts = {r.request_id: [*halves[r.request_id], *halves[f"{r.request_id}+1"]] for r in requests}
    for item in requests:
        alone = run(make_sampler(), [item])[item.request_id]
        for other in (together, narrow, staggered, parts):
            assert all(same(a, b) for a, b in zip(alone, other[item.request_id], strict=True))
            differences = [
                np.abs(a.log_probs - b.log_probs).max() for a, b in zip(alone, other[item.request_id], strict=True)
            ]
            assert max(differences) < 1e-5


def test_a_group_shares_one_prefill(model: "PreTrainedModel", make_sampler: Callable[..., BatchSampler]) -> None:
    shapes: list[tuple[int, ...]] = []
    hook = model.register_forward_pre_hook(
        lambda module, args, kwargs: shapes.append(tuple(kwargs["input_ids"].shape)), with_kwargs=True
    )
    try:
        run(make_sampler(), [request("a", 9, 8, max_new_tokens=3), request("b", 7, 8, max_new_tokens=3)])
    finally:
        hook.remove()
    assert shapes == [(2, 9), (16, 1), (16, 1)]  # two prompts, then one token of sixteen samples at a time


def test_finished_rows_leave_the_batch(model: "PreTrainedModel", make_sampler: Callable[..., BatchSampler]) -> None:
    rows: list[int] = []
    hook = model.register_forward_pre_hook(
        lambda module, args, kwargs: rows.append(kwargs["input_ids"].shape[0]), with_kwargs=True
    )
    try:
        run(make_sampler(), [request(str(n), 5, 4, max_new_tokens=4 * n) for n in (1, 2, 3)])
    finally:
        hook.remove()
    assert rows == [1] + [12] * 3 + [8] * 4 + [4] * 4  # equal prompts are one


def test_stop_strings_before_min_new_tokens_are_ignored(
    tiny_tokenizer: "PreTrainedTokenizerFast", make_sampler: Callable[..., BatchSampler]
) -> None:
    reference = run(make_sampler(), [request("a", max_new_tokens=20)])["a"][0].token_ids
    strings = tuple({str(tiny_tokenizer.decode([token])) for token in reference[:3]} - {""})
    early = run(make_sampler(), [request("a", max_new_tokens=20, stop_strings=strings)])["a"][0]
    late = run(make_sampler(), [request("a", max_new_tokens=20, stop_strings=strings, min_new_tokens=6)])["a"][0]
    assert len(early.token_ids) <= 3
    assert len(late.token_ids) > 6


def test_sampled_tokens_follow_the_model_distribution(
    model: "PreTrainedModel", make_sampler: Callable[..., BatchSampler]
) -> None:
    """Chi-square of 4000 first tokens with top-k 8 against the model's own probabilities, at 1e-6."""
    item = request("a", 9, 4000, max_new_tokens=1, top_k=8, temperature=1.5)
    tokens = np.array([g.token_ids[0] for g in run(make_sampler(), [item])["a"]])
    with torch.no_grad():
        logits = model(torch.from_numpy(item.prompt_ids.astype(np.int64))[None]).logits[0, -1].double() / 1.5
    kept = logits.topk(8)
    expected = torch.softmax(kept.values, -1).numpy() * len(tokens)
    observed = np.array([(tokens == token).sum() for token in kept.indices.tolist()])
    assert observed.sum() == len(tokens)
    assert ((observed - expected) ** 2 / expected).sum() < 40.5  # 7 degrees of freedom


def test_abort_returns_what_was_sampled_and_leaves_the_others_alone(
    make_sampler: Callable[..., BatchSampler],
) -> None:
    whole = run(make_sampler(), [request("a", 9, 2), request("b", 5, 2)])
    sampler = make_sampler(max_num_seqs=4)
    for item in (request("a", 9, 2), request("b", 5, 2), request("c", 5, 3)):
        sampler.submit(item)
    for _ in range(4):
        assert sampler.step() == []
    sampler.abort(["a", "c", "unknown"])
    finished = answers_of(sampler.step())
    assert [g.finish_reason for g in finished["a"]] == ["abort", "abort"]
    assert [g.token_ids.tolist() for g in finished["a"]] == [g.token_ids[:4].tolist() for g in whole["a"]]
    assert [len(g.token_ids) for g in finished["c"]] == [0, 0, 0]  # it was still waiting
    rest = run(sampler, [])
    assert all(same(x, y) for x, y in zip(rest["b"], whole["b"], strict=True))
    assert not sampler.has_work

    sampler.submit(request("d"))
    sampler.step()
    sampler.abort()
    assert len(answers_of(sampler.step())["d"][0].token_ids) == 1


def test_the_cache_grows_beyond_what_was_reserved(
    model: "PreTrainedModel", make_sampler: Callable[..., BatchSampler], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("roll.distributed.strategy.hf.sampler._NEW_COLUMNS", 2)
    monkeypatch.setattr("roll.distributed.strategy.hf.decoder._GROWTH_COLUMNS", 1)
    items = [request("a", 5, 2, max_new_tokens=40), request("b", 9, 2, max_new_tokens=40)]
    for item in items:
        for generation in run(make_sampler(), [item])[item.request_id]:
            expected = forward_log_probs(model, item.prompt_ids, generation)
            assert np.abs(generation.log_probs - expected).max() < 1e-5


def test_long_prompts_are_prefilled_in_several_passes(
    make_sampler: Callable[..., BatchSampler], monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = [request(str(length), length, 2) for length in LENGTHS]
    whole = run(make_sampler(), requests)
    monkeypatch.setattr("roll.distributed.strategy.hf.sampler._MAX_PREFILL_TOKENS", 34)
    split = run(make_sampler(), requests)
    assert all(same(a, b) for name in whole for a, b in zip(whole[name], split[name], strict=True))


@pytest.mark.parametrize("sliding", [True, False])
def test_a_model_that_builds_its_own_masks_samples_the_same_way(
    tiny_tokenizer: "PreTrainedTokenizerFast", make_sampler: Callable[..., BatchSampler], sliding: bool
) -> None:
    """Layers with a sliding window shorter than the sequences: log-probs equal a plain forward, padded or not."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    kinds = ["sliding_attention" if sliding else "full_attention", "full_attention"]
    torch.manual_seed(0)
    windowed = Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=296, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
            num_key_value_heads=1, use_sliding_window=True, sliding_window=6, layer_types=kinds,
        )
    ).eval()  # fmt: skip
    requests = [request(str(length), length, 2) for length in LENGTHS]
    answers = run(make_sampler(model=windowed), requests)
    for item in requests:
        for generation in answers[item.request_id]:
            expected = forward_log_probs(windowed, item.prompt_ids, generation)
            assert np.abs(generation.log_probs - expected).max() < 1e-5


@pytest.mark.parametrize(
    "bad, words",
    [
        (request("a", 250, max_new_tokens=7), "max_model_len 256"),
        (GenerationRequest("a", np.zeros(0, np.int32), SamplingParams(4)), "empty prompt"),
        (GenerationRequest("a", np.array([296], np.int32), SamplingParams(4)), "vocabulary 0..295"),
        (request("a", stop_token_ids=(-1,)), "vocabulary"),
        (request("a", stop_strings=("",)), "must not be empty"),
    ],
)
def test_a_request_that_cannot_be_served_is_refused(
    make_sampler: Callable[..., BatchSampler], bad: GenerationRequest, words: str
) -> None:
    with pytest.raises(StrategyError, match=words):
        make_sampler().check(bad)
