"""Stop strings across token boundaries, on a byte-level tokenizer."""

from typing import TYPE_CHECKING

import numpy as np
import pytest

from roll.datasets.encoding import decoder
from roll.distributed.strategy.stop_strings import StopStrings, answer_texts
from roll.types.rollout import Generation, SamplingParams
from tests.helpers.cases import cases

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


def completing_positions(tokenizer: "PreTrainedTokenizerFast", text: str, strings: tuple[str, ...]) -> list[str]:
    """The text up to each token that completes a stop string."""
    finder = StopStrings.of(tokenizer)
    ids = np.array(tokenizer.encode(text), np.int32)
    candidates = finder.candidates(strings, len(tokenizer) + 3)
    found = []
    for count in range(1, len(ids) + 1):
        completes = finder.completes(strings, ids[:count])
        assert candidates[ids[count - 1]] or not completes  # the quick table never rules out a true one
        if completes and candidates[ids[count - 1]]:
            found.append(str(tokenizer.decode(ids[:count])))
    return found


@pytest.mark.parametrize(
    "text, strings, expected",
    [
        ("abc</sql> more", ("</sql>",), ["abc</sql>"]),  # one byte per token
        ("one stop two stop", ("stop",), ["one stop", "one stop two stop"]),
        ("x user y", ("ser",), ["x user"]),  # inside one token
        ("so usery", ("o u",), ["so user"]),  # from one token into the next, which holds more
        ("<answer>12</answer>3", ("</answer>",), ["<answer>12</answer>"]),  # an added token
        ("hi<|im_end|>ho", ("<|im_end|>",), ["hi<|im_end|>"]),  # a special token
        ("naïve é", ("é",), ["naïve é"]),  # several tokens per character
        ("a\n\nb", ("\n\n",), ["a\n\n"]),
        ("aaaa", ("aa",), ["aa", "aaa", "aaaa"]),
        ("nothing here", ("never",), []),
    ],
)
def test_the_completing_token_is_found(
    tiny_tokenizer: "PreTrainedTokenizerFast", text: str, strings: tuple[str, ...], expected: list[str]
) -> None:
    assert completing_positions(tiny_tokenizer, text, strings) == expected


def test_most_tokens_are_ruled_out_without_decoding(tiny_tokenizer: "PreTrainedTokenizerFast") -> None:
    table = StopStrings.of(tiny_tokenizer).candidates(("</sql>",), len(tiny_tokenizer))
    incomplete = sum(
        "\N{REPLACEMENT CHARACTER}" in tiny_tokenizer.decode([token]) for token in range(len(tiny_tokenizer))
    )
    assert table.sum() - incomplete < 20  # ">" and the tags that hold it


@cases("text, strings, seen")
def test_the_stop_string_that_ended_an_answer_is_cut_from_what_it_says(
    tiny_tokenizer: "PreTrainedTokenizerFast", text: str, strings: tuple[str, ...], seen: str
) -> None:
    ids = np.array(tiny_tokenizer.encode(text), np.int32)
    zeros = np.zeros(len(ids), np.int32)
    ended, cut = (Generation(ids, zeros.astype(np.float32), zeros, reason) for reason in ("stop", "length"))
    without, kept = SamplingParams(9, stop_strings=strings, include_stop_string=False), SamplingParams(9)
    for decode in (decoder(tiny_tokenizer), decoder(tiny_tokenizer, skip_special_tokens=False)):
        assert answer_texts(decode, [ended, cut], without) == [seen, text]
        assert answer_texts(decode, [ended], kept) == [text]


def test_a_special_token_that_ended_an_answer_is_cut_from_its_raw_text(
    tiny_tokenizer: "PreTrainedTokenizerFast",
) -> None:
    ids = np.array(tiny_tokenizer.encode("hi<|im_end|>"), np.int32)
    answer = Generation(ids, np.zeros(len(ids), np.float32), np.zeros(len(ids), np.int32), "stop")
    sampling = SamplingParams(9, stop_strings=("<|im_end|>",), include_stop_string=False)
    for skips in (True, False):
        assert answer_texts(decoder(tiny_tokenizer, skips), [answer], sampling) == ["hi"]
