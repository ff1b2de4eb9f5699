"""The tokenizer of a model is the one in its folder: ids and text are those of tokenizer.json."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import AutoTokenizer

from roll.configs.sections.model import ModelArgs
from roll.errors import ConfigError
from roll.models.tokenizer import EngineTokenizer, load_tokenizer
from tests.helpers.cases import cases

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


def with_prefix() -> Tokenizer:
    made = byte_level()
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)  # type: ignore[assignment]
    return made


def with_limits() -> Tokenizer:
    """Saved by who cut and padded texts: neither is part of the vocabulary."""
    made = byte_level()
    made.enable_truncation(4)
    made.enable_padding(length=8, pad_token="<pad>")
    return made


def unigram() -> Tokenizer:
    """As T5 and the first Gemma cut text, with bytes for what the vocabulary lacks."""
    pieces = [("<unk>", 0.0), ("\u2581", -1.0), ("a", -2.0), ("\u2581quite", -1.5)]
    made = Tokenizer(
        models.Unigram([*pieces, *((f"<0x{byte:02X}>", -9.0) for byte in range(256))], unk_id=0, byte_fallback=True)
    )
    made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")  # type: ignore[assignment]
    made.decoder = decoders.Sequence(  # type: ignore[assignment]
        [decoders.ByteFallback(), decoders.Metaspace(prepend_scheme="first")]
    )
    made.add_special_tokens(["<s>", "</s>", "<pad>"])
    return marked(made)


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
    "another splitting under Qwen2": (lambda: byte_level(digits=True), "qwen2", {"tokenizer_class": "Qwen2Tokenizer"}),
    "a normalizer that the class drops": (lower_case, "qwen2", {"tokenizer_class": "Qwen2Tokenizer"}),
    "code of the model's own": (byte_level, None, {"auto_map": {"AutoTokenizer": ["own.Tokenizer", None]}}),
    "no config.json": (byte_level, None, {"tokenizer_class": "LlamaTokenizerFast"}),
    "sentencepiece under Llama": (sentencepiece, "llama", {"tokenizer_class": "LlamaTokenizer", "legacy": False}),
    "texts are cleaned up": (byte_level, "llama", {"clean_up_tokenization_spaces": True}),
    "a prefix that tokenizer_config.json denies": (with_prefix, "gpt2", {"add_prefix_space": False}),
    "texts were cut and padded": (with_limits, "llama", {"model_max_length": 4}),
    "a start that the class adds": (
        byte_level, "llama", {"tokenizer_class": "LlamaTokenizer", "add_bos_token": True, "add_eos_token": True},
    ),
    "pieces under Llama's class": (unigram, "llama", {"tokenizer_class": "LlamaTokenizer", "legacy": True}),
    "special tokens are split": (byte_level, "llama", {"split_special_tokens": True}),
}  # fmt: skip


def whole(path: Path) -> Tokenizer:
    """tokenizer.json, without cutting and padding."""
    raw = Tokenizer.from_file(str(path / "tokenizer.json"))
    raw.no_truncation()
    raw.no_padding()
    return raw


@pytest.mark.parametrize("shape", SHAPES)
def test_ids_and_text_are_those_of_tokenizer_json(shape: str, tmp_path: Path) -> None:
    make, model_type, config = SHAPES[shape]
    path = folder(tmp_path, make(), model_type, **config)
    raw, loaded = whole(path), load_tokenizer(str(path))
    for text in TEXTS:
        ids = raw.encode(text, add_special_tokens=False).ids
        assert loaded(text, add_special_tokens=False)["input_ids"] == ids
        assert loaded(text)["input_ids"] == raw.encode(text).ids, "and so is the start of a text"
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
    raw, place = whole(path), EngineTokenizer(ModelArgs(model_name_or_path=str(path)))
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


@cases("file, contents")
def test_a_token_without_an_embedding_that_tokenizer_json_lacks_is_refused(
    file: str, contents: dict[str, Any], tmp_path: Path
) -> None:
    """transformers gives it the next id. A model that was made with it has an embedding for that."""
    made = byte_level()
    path, size = folder(tmp_path, made, "llama"), made.get_vocab_size()
    (path / file).write_text(json.dumps(contents))
    for config in ({"vocab_size": size}, {"text_config": {"vocab_size": size}}):
        (path / "config.json").write_text(json.dumps({"model_type": "llama"} | config))
        with pytest.raises(ConfigError, match=rf"names '\[PAD\]', which tokenizer.json lacks. Its id would be {size},"):
            load_tokenizer(str(path))
    (path / "config.json").write_text(json.dumps({"model_type": "llama", "vocab_size": size + 1}))
    assert load_tokenizer(str(path)).convert_tokens_to_ids("[PAD]") == size


@pytest.mark.parametrize(
    ("files", "wanted"),
    [
        ({}, "config"),
        ({"chat_template.jinja": "a file"}, "a file"),
        ({"chat_template.json": json.dumps({"chat_template": "a processor"})}, "config"),
    ],
)
def test_of_two_chat_templates_trainers_and_engines_take_the_file_of_its_own(
    files: dict[str, str], wanted: str, tmp_path: Path
) -> None:
    path = folder(tmp_path, byte_level(), "llama", chat_template="config")
    for name, text in files.items():
        (path / name).write_text(text)
    place = EngineTokenizer(ModelArgs(model_name_or_path=str(path)))
    assert load_tokenizer(str(path)).chat_template == wanted
    assert AutoTokenizer.from_pretrained(place.path).chat_template == wanted


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


def pieces(at: Path) -> Path:
    """A folder with the file of sentencepiece alone, as Llama-2's: blanks are kept, one is put before the text."""
    sentencepiece = pytest.importorskip("sentencepiece", reason="transformers reads such files with sentencepiece")
    (at / "learnt_from.txt").write_text("\n".join(LEARNT_FROM * 20))
    sentencepiece.SentencePieceTrainer.train(
        input=str(at / "learnt_from.txt"),
        model_prefix=str(at / "tokenizer"),
        vocab_size=330,
        model_type="bpe",
        byte_fallback=True,
        hard_vocab_limit=False,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        minloglevel=2,
    )
    return at


@pytest.mark.parametrize("legacy", [True, False, None])
def test_pieces_without_tokenizer_json_are_cut_as_their_file_says(legacy: bool | None, tmp_path: Path) -> None:
    config = {"tokenizer_class": "LlamaTokenizer"} | NAMES | ({} if legacy is None else {"legacy": legacy})
    path = pieces(tmp_path)
    (path / "tokenizer_config.json").write_text(json.dumps(config))
    (path / "config.json").write_text('{"model_type": "llama"}')
    raw: Any = pytest.importorskip("sentencepiece").SentencePieceProcessor(model_file=str(path / "tokenizer.model"))
    loaded = load_tokenizer(str(path))
    for text in ("I am  quite fine\n\n 12", "\u6f22\u5b57 \U0001f642"):
        assert loaded(text, add_special_tokens=False)["input_ids"] == raw.encode(text)


@cases("model_type, config")
def test_pieces_that_a_class_cuts_otherwise_are_refused_by_name(
    model_type: str, config: dict[str, str], tmp_path: Path
) -> None:
    path = pieces(tmp_path)
    (path / "tokenizer_config.json").write_text(json.dumps(NAMES | config))
    (path / "config.json").write_text(json.dumps({"model_type": model_type}))
    with pytest.raises(ConfigError, match=r"has tokenizer.model and no tokenizer.json, and transformers cuts text"):
        load_tokenizer(str(path))
