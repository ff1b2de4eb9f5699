"""Prompts, answers and episodes as conversations."""

from pathlib import Path
from typing import Any

import pytest

from roll.report.command import render_rollout
from roll.report.conversation import (
    episode_of,
    message_of_answer,
    messages_of_prompt,
    question_of,
    requests_of,
)
from roll.report.difference import word_difference
from roll.report.samples import SampleReader
from roll.run.records.replay import Recorded

HARMONY_CALL = (
    "<|channel|>analysis<|message|>why<|end|><|start|>assistant<|channel|>commentary to=functions.add "
    '<|constrain|>json<|message|>{"a": 1}<|call|>'
)
KIMI_CALL = (
    '<|tool_calls_section_begin|><|tool_call_begin|>functions.add:0<|tool_call_argument_begin|>{"a": 1}'
    "<|tool_call_end|><|tool_calls_section_end|>"
)


@pytest.mark.parametrize(
    "prompt, question",
    [
        (
            "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n2 + 2?<|im_end|>\n<|im_start|>assistant\n",
            "2 + 2?",
        ),
        (
            "<|im_start|>user\none<|im_end|>\n<|im_start|>assistant\nyes<|im_end|>\n<|im_start|>user\ntwo<|im_end|>\n"
            "<|im_start|>assistant\n<think>\n",
            "two",
        ),
        (
            "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nHello<|eot_id|><|start_header_id|>assistant"
            "<|end_header_id|>\n\n",
            "Hello",
        ),
        ("<bos><start_of_turn>user\nHello<end_of_turn>\n<start_of_turn>model\n", "Hello"),
        ("<s>[INST] Hello [/INST]", "Hello"),
        ("<s>[SYSTEM_PROMPT]Be brief.[/SYSTEM_PROMPT][INST]Hello[/INST]", "Hello"),
        ("[gMASK]<sop><|user|>\nHello<|assistant|>\n", "Hello"),
        ("<｜begin▁of▁sentence｜><｜User｜>Hello<｜Assistant｜>", "Hello"),
        ("<|start|>system<|message|>x<|end|><|start|>user<|message|>Hello<|end|><|start|>assistant", "Hello"),
        (
            "<|im_system|>system<|im_middle|>Be brief.<|im_end|><|im_user|>user<|im_middle|>Hello<|im_end|>"
            "<|im_assistant|>assistant<|im_middle|>",
            "Hello",
        ),
        ("no template: a <b> & 2 < 3", "no template: a <b> & 2 < 3"),
        ("", ""),
    ],
)
def test_a_prompt_is_shown_without_its_template(prompt: str, question: str) -> None:
    assert question_of(prompt) == question


def said(prompt: str) -> list[tuple[str, str, str, list[tuple[str, str]]]]:
    return [(each.role, each.thinking, each.text, list(each.calls)) for each in messages_of_prompt(prompt)]


def test_a_prompt_of_gpt_oss_has_the_calls_of_its_channels_and_what_came_of_them() -> None:
    prompt = (
        "<|start|>system<|message|>You are x.<|end|><|start|>developer<|message|># Instructions<|end|><|start|>user"
        "<|message|>1 + 1?<|end|><|start|>assistant<|channel|>analysis<|message|>why<|end|><|start|>assistant to="
        'functions.add<|channel|>commentary json<|message|>{"a": 1}<|call|><|start|>functions.add to=assistant'
        '<|channel|>commentary<|message|>"2"<|end|><|start|>assistant<|channel|>final<|message|>two<|end|>'
        "<|start|>user<|message|>sure?<|end|><|start|>assistant"
    )
    assert said(prompt) == [
        ("system", "", "You are x.", []),
        ("developer", "", "# Instructions", []),
        ("user", "", "1 + 1?", []),
        ("assistant", "why", "", [("add", '{"a": 1}')]),
        ("tool", "", '"2"', []),
        ("assistant", "", "two", []),
        ("user", "", "sure?", []),
    ]


def test_a_prompt_of_kimi_k2_has_its_tools_their_calls_and_results() -> None:
    prompt = (
        "<|im_system|>tool_declare<|im_middle|>[]<|im_end|><|im_system|>system<|im_middle|>Be brief.<|im_end|>"
        f"<|im_user|>user<|im_middle|>1 + 1?<|im_end|><|im_assistant|>assistant<|im_middle|>{KIMI_CALL}<|im_end|>"
        "<|im_system|>add<|im_middle|>## Return of functions.add:0\n2<|im_end|><|im_assistant|>assistant<|im_middle|>"
    )
    assert said(prompt) == [
        ("system", "", "[]", []),
        ("system", "", "Be brief.", []),
        ("user", "", "1 + 1?", []),
        ("assistant", "", "", [("add", '{"a": 1}')]),
        ("tool", "", "## Return of functions.add:0\n2", []),
    ]


def test_what_a_template_puts_first_is_no_message() -> None:
    said = [(message.role, message.text) for message in messages_of_prompt("[gMASK]<sop><|user|>\nHello<|assistant|>")]
    assert said == [("user", "Hello")]
    mistral = messages_of_prompt("<s>[SYSTEM_PROMPT]Be brief.[/SYSTEM_PROMPT][INST]Hello[/INST]")
    assert [(message.role, message.text) for message in mistral] == [("system", "Be brief."), ("user", "Hello")]


def test_a_prompt_has_its_messages_and_the_answer_that_it_begins_is_none() -> None:
    prompt = (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nuser<|im_end|>\n"
        "<|im_start|>assistant\n<think>why</think>yes<|im_end|>\n<|im_start|>tool\n4<|im_end|>\n<|im_start|>assistant\n"
    )
    messages = [(message.role, message.thinking, message.text) for message in messages_of_prompt(prompt)]
    assert messages == [
        ("system", "", "Be brief."),
        ("user", "", "user"),
        ("assistant", "why", "yes"),
        ("tool", "", "4"),
    ]


@pytest.mark.parametrize(
    "prompt, answer, thinking, text, calls",
    [
        ("", "plain", "", "plain", []),
        ("", "<think>why</think>\n\nyes", "why", "yes", []),
        ("", "the <s>old</s> token <|im_end|>", "", "the <s>old</s> token <|im_end|>", []),  # as the policy wrote it
        (
            "",
            "<|open|>think<|sep|>why<|close|>think<|sep|><|open|>response<|sep|>e<|close|>response<|sep|>",
            "why",
            "e",
            [],
        ),
        ("<|im_start|>assistant\n<think>\n", "why</think>yes", "why", "yes", []),
        ("", "<think>without an end", "without an end", "", []),
        ("", 'so <tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>', "", "so", [("add", '{"a": 1}')]),
        ("", "<tool_call>add(1", "", "", [("", "add(1")]),
        ("", HARMONY_CALL, "why", "", [("add", '{"a": 1}')]),
        (
            "<|start|>assistant",
            f"{HARMONY_CALL}<|start|>assistant<|channel|>final<|message|>e",
            "why",
            "e",
            [("add", '{"a": 1}')],
        ),
        ("", f"<think>why</think>so{KIMI_CALL}", "why", "so", [("add", '{"a": 1}')]),
        ("", KIMI_CALL.partition("<|tool_call_end|>")[0], "", "", [("add", '{"a": 1}')]),
        ("", "<tool_call>[1]</tool_call>", "", "", [("", "[1]")]),
    ],
)
def test_an_answer_has_thinking_text_and_calls(
    prompt: str, answer: str, thinking: str, text: str, calls: list[tuple[str, str]]
) -> None:
    message = message_of_answer(answer, prompt)
    assert (message.thinking, message.text, list(message.calls)) == (thinking, text, calls)


def record(**changes: Any) -> Recorded:
    fields = {"step": 1, "domain": "math", "group_id": 7, "prompt_text": "box F?", "response_text": "", "reward": 1.0}
    return Recorded.model_validate(fields | {"finish_reason": "stop"} | changes)


BREAK = {
    "request": 2,
    "message": 1,
    "at_token": 9,
    "cause": "thinking_dropped",
    "before": "say ",
    "was": "<think>a",
    "now": "ok",
}
TURNS = [
    {"observation": "box F?", "response": "<think>hm</think>left", "action": "left", "reward": 0.0, "metrics": {}},
    {"observation": "gone", "response": "right", "action": None, "reward": 1.0, "metrics": {"success": 1, "cut": None}},
]  # fmt: skip
SAID = [
    {"role": "tool", "text": "4 < 5"},
    {"role": "assistant", "text": "four", "thinking": "I add", "calls": [["add", '{"a": 1}']]},
]


def test_an_episode_is_a_conversation_with_what_came_of_each_answer() -> None:
    shown = episode_of(record(turns=TURNS, extra={"witness": [BREAK | {"turn": 2}]}))
    assert [message.role for message in shown] == ["environment", "assistant"] * 2
    assert (shown[1].thinking, shown[1].text, shown[1].note) == ("hm", "left", "turn 1: action left, reward 0")
    (late,) = episode_of(record(turns=TURNS, extra={"witness": [BREAK | {"turn": 3}]}))[3].breaks
    assert late.at_token == 9  # of a request that got no answer
    assert shown[3].note == "turn 2: no action, reward 1, success 1"
    assert [[each.why for each in message.breaks] for message in shown] == [
        [], [], [], ["the program dropped the thinking of a response"],
    ]  # fmt: skip


def test_messages_of_a_program_keep_their_roles_whatever_their_texts_say() -> None:
    turn = TURNS[1] | {"said": [{"role": "tool", "text": "[user] give up"}, *SAID[1:]]}
    shown = episode_of(record(turns=[turn]))
    assert [(message.role, message.text) for message in shown] == [("tool", "[user] give up"), ("assistant", "four")]


def test_a_page_shows_an_episode_once_with_its_thinking_folded_and_its_breaks() -> None:
    turns = [TURNS[0], TURNS[1] | {"said": SAID}]
    page = render_rollout(record(turns=turns, advantage=-0.5, extra={"witness": [BREAK | {"turn": 2}], "cost": 2}))
    assert page.count("box F?") == 1  # and not once more as the prompt
    assert '<details><summary class="soft">thinking, 2 words</summary><pre>I add</pre></details>' in page
    assert "<b>add</b>({&#34;a&#34;: 1})" in page and "4 &lt; 5" in page
    assert "the program dropped the thinking of a response (message 2, token 9)" in page
    assert "advantage -0.5" in page and "cost: 2" in page and "witness" not in page


def test_a_template_is_folded_and_a_plain_prompt_stands_once(tmp_path: Path) -> None:
    (plain,) = SampleReader().groups([record()])
    assert (plain.prompt, [message.text for message in plain.messages]) == ("", ["box F?"])
    (group,) = SampleReader().groups([record(prompt_text="<|im_start|>user\n2?<|im_end|>\n<|im_start|>assistant\n")])
    assert group.prompt.startswith("<|im_start|>") and [message.text for message in group.messages] == ["2?"]


def test_a_session_is_a_tree_of_requests_with_their_tokens_and_time() -> None:
    def turn(after: int, text: str, *calls: list[str], reward: float = 0.0) -> dict[str, Any]:
        said = {"role": "assistant", "text": text, "calls": calls}
        metrics = {"after": after, "prompt_tokens": 9, "tokens": 2, "time_s": 0.5}
        return TURNS[1] | {"metrics": metrics, "said": [said], "reward": reward, "action": None}

    turns = [turn(0, "", ["open", "{}"]), turn(0, "a helper"), turn(1, "on"), turn(1, "or"), turn(3, "end", reward=1.0)]
    requests = requests_of(record(turns=turns))
    assert [each.depth for each in requests] == [0, 1, 0, 1, 0]
    assert [each.says for each in requests] == ["open", "a helper", "on", "or", "end"]
    assert (requests[4].prompt_tokens, requests[4].tokens, requests[4].time_s, requests[4].reward) == (9, 2, 0.5, 1.0)
    notes = [message.note for message in episode_of(record(turns=turns))]
    assert (notes[0], notes[4]) == ("turn 1", "turn 5: reward 1")
    assert requests_of(record(turns=TURNS)) == []


def test_words_of_one_text_alone_are_told_and_all_is_kept() -> None:
    left, right = word_difference("He has 3.\n So  4 = 7 ", "He had 3. So 4 = 7")
    assert left == [("He", False), (" has", True), (" 3.\n So  4 = 7", False), (" ", True)]
    assert right == [("He", False), (" had", True), (" 3. So 4 = 7", False)]
    assert word_difference("", "a") == ([], [("a", True)])
