"""What of a text is thinking, whatever the marks of the model."""

import pytest

from roll.utils.thinking import after_thinking, answer_opening, marking_tokens, opened, thinking_end, without_marks

PAIRS = [
    ("<think>", "</think>"),
    ("<Think>", "</Think>"),
    ("<think >", "</think >"),
    ("<scratchpad>", "</scratchpad>"),
    ("<inner_monologue>", "</inner_monologue>"),
    ("<thinking>", "</thinking>"),
    ("<thought_process>", "</thought_process>"),
    ("<internal_thoughts>", "</internal_thoughts>"),
    ("<deep_think>", "</deep_think>"),
    ('<think effort="low">', "</think>"),
    ("<unused94>thought", "<unused95>"),
    ("<thought>", "</thought>"),
    ("<reasoning>", "</reasoning>"),
    ("<seed:think>", "</seed:think>"),
    ("<mm:think>", "</mm:think>"),
    ("<think:opensource>", "</think:opensource>"),
    ("<longcat_think>", "</longcat_think>"),
    ("<start_working_out>", "<end_working_out>"),
    ("\u25c1think\u25b7", "\u25c1/think\u25b7"),
    ("[THINK]", "[/THINK]"),
    ("<|think|>", "<|/think|>"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<|begin_of_thought|>", "<|end_of_thought|>"),
    ("<|thought_start|>", "<|thought_end|>"),
    ("<|plamo:begin_think:plamo|>", "<|plamo:end_think:plamo|>"),
    ("<|inner_prefix|>", "<|inner_suffix|>"),
    ("<|channel>thought", "<channel|>"),
    ("<|open|>think<|sep|>", "<|close|>think<|sep|>"),
    ("<|channel|>analysis<|message|>", "<|end|><|start|>assistant<|channel|>final<|message|>"),
]
pairs = pytest.mark.parametrize(("begin", "end"), PAIRS, ids=[begin for begin, _ in PAIRS])


@pairs
def test_the_answer_is_what_follows_the_last_end_of_thinking(begin: str, end: str) -> None:
    assert after_thinking(f"{begin}\nsay 41{end}\n\n42") == "\n\n42"
    assert after_thinking(f"{begin}1{end}2{begin}3{end}4") == "4"
    assert after_thinking(f"say 41{end}42") == "42", "the prompt began it, and nobody said so"


@pairs
def test_thinking_that_never_ends_holds_no_answer(begin: str, end: str) -> None:
    assert after_thinking(f"{begin}say 41, no, 42") == ""
    assert after_thinking(f"{begin}1{end}2{begin}3") == ""


@pairs
def test_a_prompt_that_ends_in_open_thinking_is_the_answers_opening(begin: str, end: str) -> None:
    prompt = f"<|user|>2+3?<|assistant|>{begin}\n"
    assert answer_opening(prompt) == f"{begin}\n"
    assert opened(prompt, "say 41") == f"{begin}\nsay 41"
    assert opened(prompt, f"{begin}say 41") == f"{begin}say 41", "it said so itself"
    assert answer_opening(f"<|assistant|>{begin}\n\n{end}\n\n") == "", "the template left the thinking out"
    assert answer_opening(f"What does {begin} mean?<|assistant|>\n") == ""


@pairs
def test_first_words_of_thinking_in_the_prompt_are_the_answers_too(begin: str, end: str) -> None:
    prompt = f"<|user|>2+3?<|assistant|>\n{begin}\nOkay, "
    assert answer_opening(prompt) == f"{begin}\nOkay, "
    assert after_thinking(opened(prompt, "41? no, 42")) == ""
    assert after_thinking(opened(prompt, f"41{end}42")) == "42"
    assert answer_opening(f"User: how to use {begin} well?") == "", "a word of the question"
    assert answer_opening(f"<|user|>\n{begin} is what?<|assistant|>\n") == "", "another turn's"
    assert answer_opening(f"[INST] {begin} is what? [/INST]") == ""
    assert answer_opening(f"User: hi\n{begin} is what?\nAssistant: ") == ""


@pairs
def test_the_end_of_the_thinking_that_a_prompt_opens(begin: str, end: str) -> None:
    for prompt in (f"<|assistant|>{begin}\n", f"<|assistant|>\n{begin}\nOkay,"):
        assert thinking_end(prompt).lower() == end.lower()
        assert after_thinking(opened(prompt, f"{thinking_end(prompt)}42")) == "42"
    assert thinking_end("<|assistant|>\n") == ""


@pairs
def test_the_words_alone_have_no_marks(begin: str, end: str) -> None:
    assert without_marks(f"{begin}\na b{end}c").split() == ["a", "b", "c"]


def test_thinking_ends_with_its_own_marks() -> None:
    assert after_thinking("no thoughts, 4") == "no thoughts, 4"
    assert after_thinking("a[THINKER] or <thinks>, 4") == "a[THINKER] or <thinks>, 4"
    assert after_thinking("<think>it writes [/THINK] and <|END_THINKING|> 42") == ""
    assert after_thinking("<think>a</think>the tag [THINK] begins it") == "the tag [THINK] begins it"


def test_of_harmony_the_last_message_counts_if_it_is_final() -> None:
    final = "<|channel|>final<|message|>42"
    assert after_thinking(final) == "42"
    assert after_thinking(f"{final}<|end|>") == "42"
    assert after_thinking("<|channel|>final <|constrain|>json<|message|>{}") == "{}"
    assert after_thinking(f"<|channel|>commentary<|message|>I call.<|end|><|start|>assistant{final}") == "42"
    assert after_thinking(f"{final}<|end|><|start|>assistant<|channel|>analysis<|message|>no") == ""
    assert after_thinking("<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>fin") == ""
    assert after_thinking("<|channel|>anal") == ""


def test_special_tokens_are_kept_where_they_mark_thinking_alone() -> None:
    assert marking_tokens(["<s>", "[THINK]", "[/THINK]", "<|end|>", "<|message|>"]) == {"[THINK]", "[/THINK]"}
    harmony = ["<|channel|>", "<|message|>", "<|start|>", "<|end|>", "<|return|>", "<|call|>"]
    assert marking_tokens(harmony) == set(harmony[:4])
    cohere = ["<|START_THINKING|>", "<|END_THINKING|>", "<|START_RESPONSE|>", "<|END_OF_TURN_TOKEN|>"]
    assert marking_tokens(cohere) == set(cohere[:2])
