"""What `roll chat` says, against transformers alone, and what it refuses."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from roll.commands import chat_model as talker
from roll.commands.chat import run
from roll.errors import ConfigError

Say = Callable[..., tuple[int, list[str]]]


@pytest.fixture
def model(make_tiny_model_dir: Callable[..., Path]) -> Path:
    return make_tiny_model_dir()


@pytest.fixture
def say(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Say:
    """say("model", "--seed", "1", typed="hello\n") -> exit code, lines without the first."""

    def call(*words: str, typed: str) -> tuple[int, list[str]]:
        monkeypatch.setattr("sys.stdin", io.StringIO(typed))
        code = run(words)
        return code, capsys.readouterr().out.splitlines()[1:]

    return call


def greedy(model: Path, *turns: str, new_tokens: int = 12) -> str:
    """The answer to the last of these turns: of the user, the assistant, the user and so on."""
    tokenizer, hf = AutoTokenizer.from_pretrained(model), AutoModelForCausalLM.from_pretrained(model)
    roles = ("user", "assistant")
    messages = [{"role": roles[i % 2], "content": text} for i, text in enumerate(turns)]
    text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    ids = tokenizer(text, add_special_tokens=False, return_tensors="pt")
    with torch.inference_mode():
        out = cast(Any, hf).generate(**ids, max_new_tokens=new_tokens, do_sample=False, pad_token_id=0)
    return tokenizer.decode(out[0, ids["input_ids"].shape[1] :], skip_special_tokens=True)


def test_the_second_turn_sees_the_first_until_the_conversation_begins_anew(model: Path, say: Say) -> None:
    first = greedy(model, "1 2 3")
    second = greedy(model, "1 2 3", first, "4 5")
    code, lines = say(
        str(model), "--temperature", "0", "--max_new_tokens", "12", typed="1 2 3\n\n4 5\n/reset\n1 2 3\n/exit\n9\n"
    )
    said = "\n".join(lines)
    assert code == 0
    assert said == "\n".join([first, second, "(new conversation)", first])


def test_seeds_repeat_and_what_has_no_room_says_so(model: Path, say: Say) -> None:
    words = (str(model), "--max_new_tokens", "20", "--temperature", "1.5")
    answers = [say(*words, "--seed", seed, typed="1 2\n3\n")[1] for seed in ("7", "7", "8")]
    assert answers[0] == answers[1] != answers[2]
    longest = AutoModelForCausalLM.from_pretrained(model).config.max_position_embeddings
    code, lines = say(str(model), typed="1 " * longest + "\n/exit\n")
    assert code == 0 and "/reset" in lines[0] and f"the model reads {longest}" in lines[0]


def test_an_answer_that_is_stopped_is_forgotten_and_the_next_one_is_given(
    model: Path, say: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = talker.Shown.put

    def stops(self: talker.Shown, value: torch.Tensor) -> None:
        put(self, value)
        monkeypatch.setattr(talker.Shown, "put", put)
        raise KeyboardInterrupt

    monkeypatch.setattr(talker.Shown, "put", stops)
    code, lines = say(str(model), "--temperature", "0", "--max_new_tokens", "12", typed="9 9\n1 2 3\n")
    assert (code, "\n".join(lines)) == (0, "\n".join(["", "(stopped)", greedy(model, "1 2 3")]))


@pytest.mark.parametrize(
    "words, text",
    [
        (["{model}", "--top_p", "0"], "--top_p above 0"),
        (["{tmp}"], "it holds no model. Name a directory"),
        (["{tmp}/none"], "there is no such directory"),
    ],
)
def test_what_cannot_be_talked_to_is_refused(words: list[str], text: str, model: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=text):
        run([word.format(model=model, tmp=tmp_path) for word in words])


def test_a_model_without_a_template_has_no_place_for_a_system_message(model: Path, say: Say) -> None:
    (model / "chat_template.jinja").unlink(missing_ok=True)
    tokenizer = AutoTokenizer.from_pretrained(model)
    tokenizer.chat_template = None
    tokenizer.save_pretrained(model)
    (model / "chat_template.jinja").unlink(missing_ok=True)
    with pytest.raises(ConfigError, match="--system: .* has no chat template"):
        run([str(model), "--system", "be brief"])
    assert say(str(model), "--max_new_tokens", "3", typed="1 2\n")[0] == 0
