"""The tokenizer of a model is the one in its folder: ids and text are those of tokenizer.json."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from roll.configs.sections.model import ModelArgs
from roll.errors import ConfigError
from roll.models.tokenizer import EngineTokenizer, load_tokenizer

NAMES = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
SPECIAL = [*NAMES.values(), "<unk>"]
LEARNT_FROM = ["I am quite fine, thank you 12 34"] * 10
TEXTS = (
    "I am quite  fine\n\n 12345 \u6f22\u5b57 \U0001f642 <think> a <|x|>  b",
    " leads, trails ",
    "a , b . c n't don't </s><s>",
    "\ttab\u00a0nb caf\u00e9 e\u0301 x\u00b2 \uff21",
    "A<think>B</think>\n<|x|> C",
    "1 12 123 1234567 1,234.5",
    "def f(x):\n    return x  # done\n\n\n",
)


def marked(tokenizer: Tokenizer) -> Tokenizer:
    tokenizer.add_tokens([AddedToken("<think>", normalized=False), AddedToken("</think>", normalized=False)])
    tokenizer.add_special_tokens([AddedToken("<|x|>", rstrip=True, normalized=False)])
    return tokenizer


def byte_level(digits: bool = False) -> Tokenizer:
    """As GPT-2, Llama-3 and DeepSeek cut text; with `digits` each one by itself."""
    made = Tokenizer(models.BPE())
    bytes_ = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(True), bytes_]) if digits else bytes_  # type: ignore[assignment]
    made.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator(LEARNT_FROM, trainer)
    return marked(made)


def sentencepiece() -> Tokenizer:
    """As Llama-2 and Gemma cut text: blanks are letters, and bytes stand for what the vocabulary lacks."""
    made = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    made.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])  # type: ignore[assignment]
    made.decoder = decoders.Sequence(  # type: ignore[assignment]
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=600, special_tokens=[*SPECIAL, *(f"<0x{i:02X}>" for i in range(256))], show_progress=False
    )
    made.train_from_iterator(LEARNT_FROM, trainer)
    return marked(made)


def lower_case() -> Tokenizer:
    made = byte_level()
    made.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])  # type: ignore[assignment]
    return made


def folder(at: Path, made: Tokenizer, model_type: str | None = None, **config: Any) -> Path:
    made.save(str(at / "tokenizer.json"))
    (at / "tokenizer_config.json").write_text(json.dumps(NAMES | config))
    if model_type is not None:
        (at / "config.json").write_text(json.dumps({"model_type": model_type}))
    return at


def entry(token: str, **flags: bool) -> dict[str, object]:
    plain: dict[str, object] = {
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "single_word": False,
        "special": True,
    }
    return {"content": token} | plain | flags


SHAPES: dict[str, tuple[Callable[[], Tokenizer], str | None, dict[str, Any]]] = {
    "byte-level under Llama's class (DeepSeek-R1-Distill-Llama)": (
        byte_level, "llama", {"tokenizer_class": "LlamaTokenizerFast"},
    ),
    "byte-level under Llama's slow class": (byte_level, "llama", {"tokenizer_class": "LlamaTokenizer"}),
    "byte-level under Llama's class, legacy": (
        byte_level, "llama", {"tokenizer_class": "LlamaTokenizer", "legacy": True, "add_prefix_space": True},
    ),
    "another splitting under Qwen2": (lambda: byte_level(digits=True), "qwen2", {"tokenizer_class": "Qwen2Tokenizer"}),
    "another splitting under Qwen3, no class": (lambda: byte_level(digits=True), "qwen3", {}),
    "a generic class that qwen2 replaces": (
        byte_level, "qwen2", {"tokenizer_class": "PreTrainedTokenizerFast"},
    ),
    "a normalizer that the class drops": (lower_case, "qwen2", {"tokenizer_class": "Qwen2Tokenizer"}),
    "byte-level under Gemma": (byte_level, "gemma", {"tokenizer_class": "GemmaTokenizer"}),
    "byte-level under Cohere": (byte_level, "cohere", {"tokenizer_class": "CohereTokenizerFast"}),
    "GPT-2's class with a prefix": (byte_level, "gpt2", {"tokenizer_class": "GPT2Tokenizer", "add_prefix_space": True}),
    "a class that nobody knows": (byte_level, "llama", {"tokenizer_class": "TheirOwnTokenizer"}),
    "code of the model's own": (byte_level, None, {"auto_map": {"AutoTokenizer": ["own.Tokenizer", None]}}),
    "no config.json": (byte_level, None, {"tokenizer_class": "LlamaTokenizerFast"}),
    "sentencepiece under Llama": (sentencepiece, "llama", {"tokenizer_class": "LlamaTokenizer", "legacy": False}),
    "sentencepiece under Qwen2": (sentencepiece, "qwen2", {"tokenizer_class": "Qwen2Tokenizer"}),
    "texts are cleaned up": (byte_level, "llama", {"clean_up_tokenization_spaces": True}),
    "special tokens are split": (byte_level, "llama", {"split_special_tokens": True}),
}  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES)
def test_ids_and_text_are_those_of_tokenizer_json(shape: str, tmp_path: Path) -> None:
    make, model_type, config = SHAPES[shape]
    path = folder(tmp_path, make(), model_type, **config)
    raw, loaded = Tokenizer.from_file(str(path / "tokenizer.json")), load_tokenizer(str(path))
    for text in TEXTS:
        ids = raw.encode(text, add_special_tokens=False).ids
        assert loaded(text, add_special_tokens=False)["input_ids"] == ids
        for skip in (False, True):
            assert loaded.decode(ids, skip_special_tokens=skip) == raw.decode(ids, skip_special_tokens=skip)
        if make is byte_level:
            # a token may swallow the blank that follows it
            assert loaded.decode(ids, skip_special_tokens=False) == text.replace("<|x|>  ", "<|x|>").replace(
                "<|x|> ", "<|x|>"
            )
    assert (loaded.bos_token, loaded.eos_token, loaded.pad_token) == ("<s>", "</s>", "<pad>")
    assert len(loaded) == len(raw.get_vocab()), "tokens were added for which the model has no embedding"


@pytest.mark.parametrize("shape", SHAPES)
def test_an_engine_reads_the_same_tokenizer(shape: str, tmp_path: Path) -> None:
    """vLLM and SGLang take what AutoTokenizer makes of the path that they are given."""
    make, model_type, config = SHAPES[shape]
    path = folder(tmp_path, make(), model_type, **config)
    raw, place = (
        Tokenizer.from_file(str(path / "tokenizer.json")),
        EngineTokenizer(ModelArgs(model_name_or_path=str(path))),
    )
    engine = AutoTokenizer.from_pretrained(place.path)
    for text in TEXTS:
        assert engine(text, add_special_tokens=False)["input_ids"] == raw.encode(text, add_special_tokens=False).ids
    assert engine.eos_token == "</s>"


def test_an_engine_reads_the_model_s_own_folder_where_that_is_the_same(tiny_model_dir: Path) -> None:
    assert EngineTokenizer(ModelArgs(model_name_or_path=str(tiny_model_dir))).path == str(tiny_model_dir)


def test_the_folder_made_for_an_engine_goes_with_it(tmp_path: Path) -> None:
    path = folder(tmp_path, byte_level(), "llama", tokenizer_class="LlamaTokenizer")
    place = EngineTokenizer(ModelArgs(model_name_or_path=str(path)))
    made = Path(place.path)
    assert made != path and (made / "tokenizer.json").is_file()
    del place
    assert not made.exists()


def test_flags_of_added_tokens_are_those_of_tokenizer_json(tmp_path: Path) -> None:
    """tokenizer_config.json may make a token special, which leaves it out of texts; it may not change where text is
    cut."""
    made = byte_level()
    ids = {token: made.get_vocab()[token] for token in ("<think>", "<|x|>")}
    said = {
        str(ids["<think>"]): entry("<think>", lstrip=True, rstrip=True),
        str(ids["<|x|>"]): entry("<|x|>", rstrip=False),
    }
    loaded = load_tokenizer(str(folder(tmp_path, made, "llama", added_tokens_decoder=said)))
    for text in TEXTS:
        assert loaded(text, add_special_tokens=False)["input_ids"] == made.encode(text, add_special_tokens=False).ids
    assert loaded.decode([ids["<think>"]], skip_special_tokens=True) == ""


def test_an_added_token_whose_id_differs_between_the_files_is_refused(tmp_path: Path) -> None:
    made = byte_level()
    place = made.get_vocab()["<|x|>"] + 7
    path = folder(tmp_path, made, "llama", added_tokens_decoder={str(place): entry("<|x|>")})
    with pytest.raises(ConfigError, match=rf"tokenizer_config.json gives '<\|x\|>' the id {place}, tokenizer.json"):
        load_tokenizer(str(path))


def test_an_end_that_no_file_names_is_that_of_the_class(tmp_path: Path) -> None:
    """Qwen2's class ends texts with <|endoftext|>; a name that the vocabulary lacks is not added."""
    made = byte_level()
    made.add_special_tokens(["<|endoftext|>"])
    path = folder(tmp_path, made, "qwen2")
    (path / "tokenizer_config.json").write_text("{}")
    loaded = load_tokenizer(str(path))
    assert loaded.eos_token == "<|endoftext|>"
    assert len(loaded) == len(made.get_vocab())


@pytest.mark.parametrize("content", ["", "{", '{"model": {"type": "None"}}', "\x00\x01"])
def test_a_broken_tokenizer_json_is_refused_by_name(content: str, tmp_path: Path) -> None:
    path = folder(tmp_path, byte_level(), "llama")
    (path / "tokenizer.json").write_text(content)
    with pytest.raises(ConfigError, match="^pretrain: no tokenizer can be loaded from "):
        load_tokenizer(str(path))


def test_an_id_of_the_hub_that_cannot_be_reached_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hub is off in tests (HF_HUB_OFFLINE), as where there is no network."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(ConfigError, match=r"^pretrain: no tokenizer can be loaded from owner/no-such-model: ") as error:
        load_tokenizer("owner/no-such-model")
    assert "taken for an id of the hub" in str(error.value)
    assert "(hf download owner/no-such-model --local-dir ...) and give that directory" in str(error.value)


def test_a_directory_without_a_tokenizer_is_not_taken_for_an_id(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="^pretrain: no tokenizer can be loaded from ") as error:
        load_tokenizer(str(tmp_path))
    assert "taken for an id" not in str(error.value)


def test_a_vocabulary_of_few_letters_is_one(tmp_path: Path) -> None:
    """It has no token for the letters of "text"."""
    made = Tokenizer(models.WordLevel({letter: place for place, letter in enumerate("0123456789")}))
    made.pre_tokenizer = pre_tokenizers.Split("", "isolated")  # type: ignore[assignment]
    folder(tmp_path, made, eos_token="9", pad_token="9", bos_token=None)
    assert load_tokenizer(str(tmp_path))("12", add_special_tokens=False)["input_ids"] == [1, 2]


def test_a_class_that_comes_with_the_model_is_not_needed_for_a_padding(tmp_path: Path) -> None:
    own = {"auto_map": {"AutoTokenizer": ["tokenization_own.OwnTokenizer", None]}, "pad_token": None}
    at = folder(tmp_path, byte_level(), "of_its_own", tokenizer_class="OwnTokenizer", **own)
    (at / "config.json").write_text('{"model_type": "of_its_own", "auto_map": {"AutoConfig": "configuration_own.Own"}}')
    tokenizer = load_tokenizer(str(at))
    assert (tokenizer.eos_token, tokenizer.pad_token) == ("</s>", None)


def test_flags_of_many_added_tokens_take_one_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = byte_level()
    first, names = made.get_vocab_size(), [f"<unused{number}>" for number in range(50)]
    made.add_tokens([AddedToken(name, normalized=False) for name in names])
    said = {str(first + place): entry(name, normalized=True) for place, name in enumerate(names)}
    at, calls = folder(tmp_path, made, added_tokens_decoder=said), []
    own = PreTrainedTokenizerFast.add_tokens

    def counted(self: PreTrainedTokenizerFast, *args: Any, **kwargs: Any) -> int:
        calls.append(1)
        return own(self, *args, **kwargs)

    monkeypatch.setattr(PreTrainedTokenizerFast, "add_tokens", counted)
    loaded = load_tokenizer(str(at)).added_tokens_decoder
    assert len(calls) <= 2 and not any(loaded[first + place].normalized for place in range(50))
