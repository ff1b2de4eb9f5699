"""What is learnt of conversations through templates with the traits of real ones: whole answers, and their ends."""

from itertools import compress
from pathlib import Path
from typing import Any

import pytest

from roll.datasets.answers.end_tokens import answer_ends, asks
from roll.datasets.answers.turns import Turns
from roll.datasets.loader import Row
from roll.datasets.prompt_template import PromptTemplate
from roll.errors import ConfigError
from tests.helpers.cases import cases
from tests.helpers.chat_traits import TRAITS, Trait, tokenizer_of

KEY = "sft_train.data_args.template"
ROW = Row("rows.jsonl", 1, {})
KEEPS, DROPS = TRAITS["keeps every turn"], TRAITS["drops earlier reasoning"]
CHANNELS, ROLES = TRAITS["channels, one call"], TRAITS["ends with the next role's mark"]
BASE = TRAITS["ends with a mark at which no engine stops"]


def user(content: str) -> dict[str, Any]:
    return {"role": "user", "content": content}


def answer(content: str | None, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **more}


def calls(*made: tuple[str, Any]) -> list[dict[str, Any]]:
    return [{"type": "function", "function": {"name": name, "arguments": given}} for name, given in made]


WEATHER = ("weather", {"city": "Rome", "days": 2})
TALK = [user("hi"), answer("yo"), user("again"), answer("sure")]
CALL = [user("wet?"), answer("", tool_calls=calls(WEATHER)), {"role": "tool", "content": "dry"}, answer("No.")]


def learnt(
    folder: Path, trait: Trait, messages: list[dict[str, Any]], template: str = "native", train_on: Any = "all"
) -> list[tuple[str, str]]:
    """By row, its whole text and what is learnt of it."""
    tokenizer = tokenizer_of(trait, folder)
    turns = Turns(PromptTemplate.load(template, tokenizer, KEY), train_on)
    return [
        (str(tokenizer.decode(ids)), str(tokenizer.decode(list(compress(ids, mask)))))
        for ids, mask, _ in turns.rows(messages, ROW)
    ]


def rendered(folder: Path, trait: Trait, messages: list[dict[str, Any]], **more: Any) -> str:
    return str(tokenizer_of(trait, folder).apply_chat_template(messages, tokenize=False, **more))


@pytest.mark.parametrize("name", [name for name in TRAITS if TRAITS[name] is not BASE])
def test_every_answer_is_behind_the_prompt_that_asks_for_it_and_ends_where_engines_stop(
    name: str, tmp_path: Path
) -> None:
    """Each row is cut before each of its learnt stretches: what is before one is the template's own prompt there, as
    it is or without thinking."""
    trait = TRAITS[name]
    tokenizer = tokenizer_of(trait, tmp_path)
    ends = {tokenizer.get_vocab()[mark] for mark in trait.ends or (trait.eos,)}
    prompts = [rendered(tmp_path, trait, TALK[:place], add_generation_prompt=True) for place in (1, 3)]
    prompts += [
        rendered(tmp_path, trait, TALK[:place], add_generation_prompt=True, enable_thinking=False) for place in (1, 3)
    ]
    answers = 0
    for ids, mask, _ in Turns(PromptTemplate.load("native", tokenizer, KEY), "all").rows(TALK, ROW):
        for place, (before, is_learnt) in enumerate(zip([False, *mask], mask, strict=False)):
            if is_learnt and not before:
                answers += 1
                assert tokenizer.decode(ids[:place]) in prompts
            if before and not is_learnt:
                assert ids[place - 1] in ends
        if mask[-1]:
            assert ids[-1] in ends
    assert answers == 2


@cases("name, expected")
def test_all_answers_of_a_conversation_are_learnt_whatever_the_template_makes_of_earlier_turns(
    name: str, expected: list[str], tmp_path: Path
) -> None:
    rows = learnt(tmp_path, TRAITS[name], TALK)
    assert [told for _, told in rows] == expected
    last = learnt(tmp_path, TRAITS[name], TALK, train_on="last")
    assert len(last) == 1 and rows[-1][0] == last[0][0] and rows[-1][1].endswith(last[0][1])


@pytest.mark.parametrize("word", ["reasoning_content", "thinking", "reasoning"])
@cases("name, expected")
def test_reasoning_is_learnt_under_any_of_its_names(name: str, expected: str, word: str, tmp_path: Path) -> None:
    talk = [user("hi"), answer("yo", **{word: "Hm."}), user("again"), answer("sure", **{word: "Well."})]
    first, second = learnt(tmp_path, TRAITS[name], talk)
    assert first[1] == expected
    assert second[1] == expected.replace("Hm.", "Well.").replace("yo", "sure")


@pytest.mark.parametrize("word", ["reasoning_content", "thinking", "reasoning"])
@pytest.mark.parametrize("template", ["native", "plain", "chatml"])
def test_reasoning_that_a_template_does_not_write_is_refused(word: str, template: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=rf"rows.jsonl:1: {KEY}: .*{word}"):
        learnt(tmp_path, KEEPS, [user("hi"), answer("yo", **{word: "Hm."})], template)


def test_reasoning_in_the_content_is_learnt_once_behind_its_prompt(tmp_path: Path) -> None:
    talk = [user("hi"), answer("<think>\nHm.\n</think>\n\nyo")]
    for name in ("opens the thinking, writes none", "thinks when it is asked to"):
        ((whole, told),) = learnt(tmp_path, TRAITS[name], talk)
        assert "".join(told.split()) == "Hm.</think>yo<|sentence_end|>" and whole.count("think>") == 2
    trait = TRAITS["opens the thinking, can be asked without"]
    ((_, taught),) = learnt(tmp_path, trait, [user("hi"), answer("Hm.\n</think>\n\nyo")])
    assert taught.startswith("Hm.\n</think>") and taught.count("Hm.") == 1


@pytest.mark.parametrize(
    ("arguments", "left"),
    [({"b": 1, "a": "é\n\"'<&"}, ""), ({"deep": {"list": [1, {"x": "y"}], "no": 2.5}}, ""), ({}, "")],
)
def test_calls_are_learnt_however_a_template_writes_their_arguments(arguments: Any, left: str, tmp_path: Path) -> None:
    for name in ("keeps every turn", "thinks when it is asked to", "channels, one call"):
        talk = [user("hi"), answer("", tool_calls=calls(("weather", arguments)))]
        ((_, told),) = learnt(tmp_path, TRAITS[name], talk)
        assert "weather" in told and all(key in told for key in arguments)


@pytest.mark.parametrize(
    ("name", "messages", "message"),
    [
        ("channels, one call", [answer("", tool_calls=calls(WEATHER, WEATHER))], "leaves out call 2 of message 2"),
        ("channels, one call", [answer("So.", tool_calls=calls(WEATHER))], "leaves out the content of message 2"),
        ("a call instead of the content", [answer("So.", tool_calls=calls(WEATHER))], "leaves out the content of mes"),
        ("a call instead of the content", [answer("", tool_calls=calls(WEATHER) * 2)], "a single call at once"),
        ("ends the whole with eos", CALL[1:], "leaves out the calls of message 2"),
        (
            "ends the whole with eos",
            [answer("yo"), {"role": "tool", "content": "dry"}, answer("s")],
            "content of message 3",
        ),
    ],
)
def test_a_part_that_the_template_does_not_write_is_refused_by_name(
    name: str, messages: list[dict[str, Any]], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=rf"rows.jsonl:1: {KEY}: .*{message}"):
        learnt(tmp_path, TRAITS[name], [user("hi"), *messages])


def test_an_argument_that_a_template_leaves_out_is_refused_by_name(tmp_path: Path) -> None:
    source = KEEPS.template.replace("call.function.arguments | tojson", "call.function.arguments.city")
    with pytest.raises(ConfigError, match="leaves out the argument 'city' of call 1 of message 2"):
        learnt(tmp_path, Trait("", source), CALL)


def test_turns_of_a_loop_of_calls_share_a_row_as_long_as_the_template_keeps_them(tmp_path: Path) -> None:
    """Reasoning between calls goes only once a user speaks again."""
    thinking = [user("wet?"), {**CALL[1], "thinking": "Look."}, CALL[2], {**CALL[3], "thinking": "Dry."}]
    rows = learnt(tmp_path, DROPS, [*thinking, user("sure?"), answer("yes")])
    assert [told.count("<|im_end|>") for _, told in rows] == [2, 1]
    assert "Look." in rows[0][1] and "Dry." in rows[0][1] and "Look." not in rows[1][0]
    ((whole, told),) = learnt(tmp_path, CHANNELS, thinking)
    assert told.count("analysis<|message|>") == 2 and whole.count("Look.") == 1


def test_an_answer_ends_with_the_mark_that_the_files_or_the_template_name(tmp_path: Path) -> None:
    """That of the message that follows, or the one that would."""
    ((whole, told),) = learnt(tmp_path, ROLES, CALL)
    assert told.count("<|observation|>") == 1 and told.endswith("No.<|user|>")
    assert whole.count("<|observation|>") == 1
    ((_, told),) = learnt(tmp_path, ROLES, CALL[:2])
    assert told.endswith("</call><|observation|>")
    tokenizer = tokenizer_of(BASE, tmp_path)
    (tmp_path / "generation_config.json").unlink()
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    (tmp_path / "config.json").write_text(f'{{"text_config": {{"eos_token_id": [{end}]}}}}')
    assert Turns(PromptTemplate.load("native", tokenizer, KEY), "all").rows(TALK, ROW)


def test_an_answer_at_whose_end_no_engine_stops_is_refused_with_the_way_out(tmp_path: Path) -> None:
    """As of base models: their template ends turns with <|im_end|>, and engines stop at <|endoftext|>."""
    end = tokenizer_of(BASE, tmp_path).convert_tokens_to_ids("<|im_end|>")
    with pytest.raises(ConfigError, match=f"add {end} to eos_token_id in the generation_config.json of {tmp_path}"):
        learnt(tmp_path, BASE, TALK)
    both = Trait(BASE.like, BASE.template, BASE.eos, ends=("<|endoftext|>", "<|im_end|>"))
    assert [told for _, told in learnt(tmp_path, both, TALK)] == ["yo<|im_end|>sure<|im_end|>"]
    endless = Trait("", "{% for m in messages %}{{ m.role }}: {{ m.content }} {% endfor %}")
    with pytest.raises(
        ConfigError, match=r"would learn to continue forever.*here '<\|im_end\|>'\. Use a template that"
    ):
        learnt(tmp_path, endless, TALK)


def test_the_model_says_what_ends_answers_where_its_tokenizer_is_from_another_folder(tmp_path: Path) -> None:
    for name in ("model", "tokenizer"):
        (tmp_path / name).mkdir()
    tokenizer = tokenizer_of(BASE, tmp_path / "tokenizer")
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    (tmp_path / "model" / "generation_config.json").write_text(f'{{"eos_token_id": [{end}]}}')
    assert end not in answer_ends(tokenizer)
    asks(tokenizer, str(tmp_path / "model"))
    assert end in answer_ends(tokenizer)
    assert Turns(PromptTemplate.load("native", tokenizer, KEY), "all").rows(TALK, ROW)
    tokenizer.save_pretrained(tmp_path / "saved")
    assert "roll_model" not in (tmp_path / "saved" / "tokenizer_config.json").read_text()


@pytest.mark.parametrize("name", ["chatml", "empty"])
def test_a_named_template_whose_marks_the_vocabulary_lacks_is_refused_by_name(name: str, tmp_path: Path) -> None:
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE()), eos_token="</s>")
    with pytest.raises(ConfigError, match=rf"{KEY}: {name} marks turns with <\|im_end\|> and <\|im_start\|>, which"):
        PromptTemplate.load(name, tokenizer, KEY)


def test_named_templates_begin_with_what_the_tokenizer_puts_before_a_text(tmp_path: Path) -> None:
    from tokenizers.processors import TemplateProcessing

    trait = TRAITS["alternates, ends turns with another mark than eos"]
    tokenizer = tokenizer_of(trait, tmp_path)
    assert PromptTemplate.load("base", tokenizer, KEY).opening == ""
    bos = ("<|bos|>", tokenizer.convert_tokens_to_ids("<|bos|>"))
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing("<|bos|> $A", special_tokens=[bos])
    written = PromptTemplate.load("{% for m in messages %}[{{ m.content }}]{% endfor %}", tokenizer, KEY)
    assert written.render_messages([user("hi"), user("ho")], ROW) == "[hi][ho]"
    template = PromptTemplate.load("chatml", tokenizer, KEY)
    assert template.render_messages([user("hi")], ROW).startswith("<|bos|><|im_start|>user\nhi")
    native = PromptTemplate.load("native", tokenizer, KEY).render_messages([user("hi")], ROW)
    assert native.count("<|bos|>") == 1


def test_a_system_prompt_that_a_template_writes_beside_the_last_question_alone_is_asked_with(tmp_path: Path) -> None:
    """Of Mistral: once the question is answered the template leaves it out."""
    trait = TRAITS["system and tools beside the last question, nothing opens answers"]
    tokenizer = tokenizer_of(trait, tmp_path)
    system, said = {"role": "system", "content": "Be brief."}, {"role": "assistant", "content": "yes"}
    asked = [{"role": "user", "content": "yes or no?"}, said, {"role": "user", "content": "sure?"}]
    turns = Turns(PromptTemplate.load("native", tokenizer, "template"), "all")
    rows = turns.rows([system, *asked, {"role": "assistant", "content": "sure"}], Row("", 0, {}))
    assert [tokenizer.decode(tokens) for tokens, _, _ in rows] == [
        "<|bos|>[INST]Be brief.\n\nyes or no?[/INST] yes<|eos|>",
        "<|bos|>[INST]yes or no?[/INST] yes<|eos|>[INST]Be brief.\n\nsure?[/INST] sure<|eos|>",
    ]
    assert [sum(mask) for _, mask, _ in rows] == [len(tokenizer.encode(f" {word}<|eos|>")) for word in ("yes", "sure")]


def test_an_answer_with_a_weight_of_zero_is_not_learnt(tmp_path: Path) -> None:
    """OpenAI's files, SlimOrca."""
    talk = [user("hi"), answer("bad", weight=0.0), user("again"), answer("sure", weight=1.0)]
    ((text, taught),) = learnt(tmp_path, KEEPS, talk)
    assert "bad" in text and taught == "sure<|im_end|>"
    assert learnt(tmp_path, KEEPS, talk[:2]) == []
