"""From sampled tokens to the reward: marks of thinking count alike, be they special tokens, words or in the prompt."""

from typing import Any

import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from roll.datasets.encoding import decoder
from roll.rewards.base import RewardInput, RewardResult
from roll.rewards.code.languages import code_in
from roll.rewards.config import RewardConfig
from roll.rewards.penalties import LongWord, Repetition
from roll.rewards.texts import Regex
from roll.rewards.worker import RewardWorker
from tests.helpers.cases import cases

HARMONY = ("<|channel|>analysis<|message|>", "<|end|><|start|>assistant<|channel|>final<|message|>")
PAIRS = [
    ("<think>", "</think>"),
    ("[THINK]", "[/THINK]"),
    ("<|START_THINKING|>", "<|END_THINKING|><|START_RESPONSE|>"),
    ("<|begin_of_thought|>", "<|end_of_thought|>"),
    HARMONY,
]
SPECIAL = [
    *("<eos>", "<pad>", "<think>", "</think>", "[THINK]", "[/THINK]", "<|START_THINKING|>", "<|END_THINKING|>"),
    *("<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|begin_of_thought|>", "<|end_of_thought|>"),
    *("<|channel|>", "<|message|>", "<|start|>", "<|end|>", "<|return|>"),
]
pairs = pytest.mark.parametrize(("begin", "end"), PAIRS, ids=[begin for begin, _ in PAIRS])
forms = pytest.mark.parametrize("form", ["special", "words", "prompt"])


def tokenizer(special: bool) -> PreTrainedTokenizerFast:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    added = SPECIAL if special else ["<eos>", "<pad>", "<|START_RESPONSE|>", "<|return|>"]
    backend.add_special_tokens([AddedToken(token, special=True) for token in added])
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<eos>", pad_token="<pad>")


def sampled(form: str, begin: str, rest: str, truth: Any = None) -> RewardInput:
    """What a reward gets where the model wrote this, then the end of its turn."""
    of = tokenizer(form != "words")
    prompt = "<|user|>?<|assistant|>" + (f"{begin}\n" if form == "prompt" else "")
    ids = [np.array(of.encode(("" if form == "prompt" else begin) + rest + "<eos><pad>"), np.int32)]
    (text,), (raw,) = decoder(of)(ids), decoder(of, skip_special_tokens=False)(ids)
    assert raw.endswith("<eos><pad>") and "<eos>" not in text
    return RewardInput(prompt, text, truth, raw_text=raw, payload={"ground_truth": truth})


@forms
@pairs
@cases("reward, args, truth, answer, wrong")
def test_unfinished_thinking_is_paid_alike_whatever_its_marks(
    reward: str, args: dict[str, Any], truth: str, answer: str, wrong: float, begin: str, end: str, form: str
) -> None:
    worker = RewardWorker("math", RewardConfig(reward=reward, reward_args=args))
    inputs = [
        sampled(form, begin, f"say 41, no{end}{answer}", truth),
        sampled(form, begin, f"say 41, no, {answer}", truth),
    ]
    assert [outcome.score for outcome in worker.score(inputs) if outcome is not None] == [1, wrong]


@forms
@pairs
def test_code_in_unfinished_thinking_is_none(begin: str, end: str, form: str) -> None:
    block = "\n```python\nx = 1\n```\n"
    fences = {"python": "python"}
    assert code_in(sampled(form, begin, block).response_text, fences) is None
    assert code_in(sampled(form, begin, f"hm{end}{block}").response_text, fences) is not None


@forms
@pairs
def test_a_format_and_a_reward_of_ones_own_see_the_marks_that_the_model_thinks_between(
    begin: str, end: str, form: str
) -> None:
    first, last = ("<|channel|>analysis", "final<|message|>") if (begin, end) == HARMONY else (begin, end[:8])
    pattern = f".*{''.join(map(_quoted, first))}.*{''.join(map(_quoted, last))}.*42"
    own = RewardConfig(reward="tests.unit.rewards.test_thinking_marks:begins_with", reward_args={"mark": begin})
    worker = RewardWorker("math", own.model_copy(update={"format_pattern": pattern}))
    inputs = [sampled(form, begin, f"say 41{end}42"), sampled(form, begin, "say 41, no, 42")]
    assert [outcome.score for outcome in worker.score(inputs) if outcome is not None] == [1, 0]


def begins_with(sample: RewardInput, mark: str) -> RewardResult:
    return RewardResult(float(sample.response_text.startswith(mark)), {}, {"answer": sample.answer})


def _quoted(character: str) -> str:
    return f"\\{character}" if character in "|[]" else character


@forms
@pairs
def test_marks_are_no_words_to_the_penalties(begin: str, end: str, form: str) -> None:
    sample = sampled(form, begin, f"\na b{end}c d")
    assert LongWord(max_chars=1)(sample) == 0
    assert Repetition(ngram_size=1)(sample) == 0


def test_raw_text_has_the_marks_and_an_opening_once() -> None:
    sample = sampled("special", "[THINK]", "a[/THINK]b<eos>c")
    assert (sample.response_text, sample.answer) == ("[THINK]a[/THINK]bc", "bc")
    assert sample.raw_text == "[THINK]a[/THINK]b<eos>c<eos><pad>"
    sample = RewardInput("?<think>\n", "a</think>b")
    assert sample.response_text == "<think>\na</think>b"
    assert RewardInput("?<think>\n", sample.response_text) == sample
    for pattern, text in ((r"\d+$", "4\n\n"), (r"\d+$", "4 x"), (r"\d+", "4\n"), (r"\d+\$", "4\n")):
        assert Regex(pattern)(RewardInput("", text)) == 0


@cases("pattern, text, score")
def test_exact_match_looks_behind_the_thinking(pattern: str | None, text: str, score: float) -> None:
    worker = RewardWorker("math", RewardConfig(reward="exact_match", reward_args={"pattern": pattern}))
    (outcome,) = worker.score([RewardInput("", text, "42")])
    assert outcome is not None and outcome.score == score


@pytest.mark.parametrize("text", ["<think>a</think>42", "<think>a</think>42\n"])
@pytest.mark.parametrize("pattern", [r"^<think>.*</think>\d+$", r"<think>.*</think>\d+\n?"])
def test_a_dollar_at_the_end_of_a_format_leaves_out_a_last_line_break(pattern: str, text: str) -> None:
    config = RewardConfig(reward="math_rule", format_pattern=pattern)
    (outcome,) = RewardWorker("math", config).score([RewardInput("", text, "42")])
    assert outcome is not None and outcome.score == 1
    assert Regex(pattern)(RewardInput("", text)) == 1
