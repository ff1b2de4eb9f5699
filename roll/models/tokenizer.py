"""The tokenizer of a model directory or hub id: ids and text are those of its tokenizer.json."""

import json
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tokenizers import AddedToken
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast
from transformers.utils.hub import cached_file

from roll.configs.sections.model import ModelArgs
from roll.configs.tables.sight import WRITTEN
from roll.errors import ConfigError
from roll.models.hub import local_model
from roll.utils.files import path_info

TOKENIZER_FILE = "tokenizer.json"
PIECE_FILES = ("tokenizer.model", "spiece.model")
PROBES = ("I am quite  fine\n\n 12345", "\u6f22\u5b57 \U0001f642 x\u00b2 \uff21", "a , b\tc")
_NO_LIMIT = 10**30


def tokenizer_of(args: ModelArgs, key: str = "pretrain") -> PreTrainedTokenizerBase:
    """Load the tokenizer of a role, from this machine or the hub."""
    return load_tokenizer(local_model(args).tokenizer_name, key)


def load_tokenizer(model_name_or_path: str, key: str = "pretrain") -> PreTrainedTokenizerBase:
    """Raises ConfigError when there is none. Code that comes with a model is not run. `key`: the YAML's, for that."""
    try:
        tokenizer = _load(model_name_or_path, key)
    except ConfigError:
        raise
    except Exception as error:  # tokenizers raises no class of its own for a broken file
        text = f"{key}: no tokenizer can be loaded from {model_name_or_path}: {error}"
        if not path_info(model_name_or_path).is_directory:
            text = (
                f"{text.rstrip('. ')}. It is not a directory on this machine, so it was taken for an id of the hub. If "
                f"the hub cannot be reached, fetch the model elsewhere (hf download {model_name_or_path} --local-dir "
                "...) and give that directory; or correct the name."
            )
        raise ConfigError(text) from error
    return tokenizer


def _load(name: str, key: str) -> PreTrainedTokenizerBase:
    """transformers 5 rebuilds a tokenizer by its class (`tokenizer_class`, or `model_type` of config.json) and takes no
    more than the vocabulary from tokenizer.json: where another class made the file, text is cut otherwise or loses its
    spaces (a byte-level file under LlamaTokenizerFast), without a word. So the file is taken as it is."""
    file = model_file(name, TOKENIZER_FILE)
    if file is None:
        tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=False)
        if not tokenizer("text", add_special_tokens=False)["input_ids"]:
            # transformers makes one without a vocabulary where config.json says qwen2 or qwen3 and no file is there
            raise ConfigError(
                f"{key}: {name} has no files of a tokenizer. Copy them there, or say in model_args.tokenizer_path "
                "where they are"
            )
        _check_pieces(tokenizer, name, key)
    else:
        tokenizer = PreTrainedTokenizerFast.from_pretrained(name, split_special_tokens=False)
        if tokenizer.eos_token is None or tokenizer.pad_token is None:
            _name_special_tokens(tokenizer, name)
        contents = json.loads(file.read_text(encoding="utf-8"))
        _check_for_embeddings(tokenizer, contents, file, key)
        _cut_at_added_tokens_of(contents, tokenizer)
    _write_marks(tokenizer, name)
    tokenizer.model_max_length = _NO_LIMIT  # it is said in many ways, and nothing here cuts at it
    tokenizer.clean_up_tokenization_spaces = False  # else "a ." is decoded as "a."
    return tokenizer


def _write_marks(tokenizer: PreTrainedTokenizerBase, name: str) -> None:
    """Patch the chat template to write the processor's image placeholders, with one token for a picture."""
    file = model_file(name, "config.json")
    kind = json.loads(file.read_text(encoding="utf-8")).get("model_type") if file is not None else None
    written = WRITTEN.get(str(kind))
    if written is not None and isinstance(tokenizer.chat_template, str):
        tokenizer.chat_template = tokenizer.chat_template.replace(*written)


def _check_pieces(tokenizer: PreTrainedTokenizerBase, name: str, key: str) -> None:
    """Raises ConfigError where a model has the file of sentencepiece alone, and what transformers makes of it cuts text
    otherwise: it knows the vocabulary, and not how the file treats blanks, signs and bytes. Checks nothing without
    sentencepiece, nor where ids are shifted on purpose."""
    file = next(filter(None, (model_file(name, each) for each in PIECE_FILES)), None)
    if file is None or find_spec("sentencepiece") is None:
        return
    from sentencepiece import SentencePieceProcessor

    read: Any = SentencePieceProcessor
    try:
        pieces = read(model_file=str(file))
    except RuntimeError:  # another file of that name
        return
    places = range(0, len(pieces), 1 + len(pieces) // 50)
    if any(tokenizer.convert_tokens_to_ids(pieces.id_to_piece(place)) != place for place in places):
        return
    for text in PROBES:
        ids, wanted = tokenizer(text, add_special_tokens=False)["input_ids"], pieces.encode(text)
        if ids != wanted:
            raise ConfigError(
                f"{key}: {name} has {file.name} and no {TOKENIZER_FILE}, and transformers cuts text otherwise than "
                f"that file: {text!r} is {ids}, and {wanted} there. Add the {TOKENIZER_FILE} of the model "
                "(transformers.convert_slow_tokenizer makes one), or name its class in tokenizer_config.json."
            )


def model_file(name: str, file: str) -> Path | None:
    """Local path of a model's file, downloaded from the hub if needed; None if the model has none."""
    path = cached_file(
        name,
        file,
        _raise_exceptions_for_gated_repo=False,
        _raise_exceptions_for_missing_entries=False,
        _raise_exceptions_for_connection_errors=False,
    )
    return Path(path) if path else None


def _name_special_tokens(tokenizer: PreTrainedTokenizerFast, name: str) -> None:
    """The end and the padding that no file names: those of the class, where the vocabulary has them."""
    try:
        by_class = AutoTokenizer.from_pretrained(name, trust_remote_code=False)
    except Exception:  # a class that transformers does not know, or that comes with the model, has nothing to add
        return
    vocabulary = tokenizer.get_vocab()
    for special in ("bos_token", "eos_token", "unk_token", "pad_token"):
        token = getattr(by_class, special, None)
        if getattr(tokenizer, special) is None and token in vocabulary:
            setattr(tokenizer, special, token)


def _check_for_embeddings(
    tokenizer: PreTrainedTokenizerFast, contents: Mapping[str, Any], file: Path, key: str
) -> None:
    """Raises ConfigError where another file names a token that tokenizer.json lacks, so that transformers makes up an
    id, and the model has no embedding for it."""
    vocabulary = contents["model"].get("vocab") or ()
    known = {entry[0] if isinstance(entry, list) else entry for entry in vocabulary}
    known |= {entry["content"] for entry in contents.get("added_tokens") or ()}
    made_up = {n: token.content for n, token in tokenizer.added_tokens_decoder.items() if token.content not in known}
    size = _num_embeddings(file.with_name("config.json")) if made_up else None
    if size is not None and max(made_up) >= size:
        token = made_up[max(made_up)]
        raise ConfigError(
            f"{key}: tokenizer_config.json, special_tokens_map.json or added_tokens.json in {file.parent} names "
            f"{token!r}, which {TOKENIZER_FILE} lacks. Its id would be {max(made_up)}, and the model has {size} "
            f"embeddings (vocab_size). Name a token of {TOKENIZER_FILE} there, or remove the entry."
        )


def _num_embeddings(config: Path) -> int | None:
    try:
        model = json.loads(config.read_text(encoding="utf-8"))
    except OSError:
        return None
    size = model.get("text_config", model).get("vocab_size", model.get("vocab_size"))
    return size if type(size) is int else None


def _cut_at_added_tokens_of(contents: Mapping[str, Any], tokenizer: PreTrainedTokenizerFast) -> None:
    """tokenizer_config.json may say of a token whether it is special, not whether it swallows the blanks around it."""
    loaded = tokenizer.added_tokens_decoder
    changed: list[AddedToken] = []
    for entry in contents.get("added_tokens") or ():
        number, content = entry["id"], entry["content"]
        flags = {name: bool(entry.get(name)) for name in ("single_word", "lstrip", "rstrip", "normalized")}
        if number in loaded and any(getattr(loaded[number], name) != flag for name, flag in flags.items()):
            special = bool(entry.get("special")) or loaded[number].special
            changed.append(AddedToken(content, special=special, **flags))
    tokenizer.add_tokens(changed)  # type: ignore[arg-type]  # in one call: each reads all added tokens anew


class EngineTokenizer:
    """Path from which an engine reads the tokenizer. It is the model's directory. If AutoTokenizer makes another
    tokenizer of that, it is a temporary directory with the one of `tokenizer_of`, which exists as long as this
    object."""

    def __init__(self, args: ModelArgs):
        """Raises ConfigError as `load_tokenizer` does."""
        self.path = args.tokenizer_name
        self._folder: TemporaryDirectory[str] | None = None
        tokenizer = tokenizer_of(args)
        if _is_loaded_alike(tokenizer, self.path):
            return
        self._folder = TemporaryDirectory(prefix="roll-tokenizer-")
        self.path = self._folder.name
        tokenizer.save_pretrained(self.path)


def _is_loaded_alike(tokenizer: PreTrainedTokenizerBase, name: str) -> bool:
    try:
        other = AutoTokenizer.from_pretrained(name, trust_remote_code=False)
    except Exception:  # what was loaded by its file may have a class that transformers does not know
        return False
    if not isinstance(other.model_max_length, int | float):
        return False
    return _pipeline(tokenizer) == _pipeline(other) and tokenizer.split_special_tokens == other.split_special_tokens


def tokenizer_key(role: str, args: ModelArgs) -> str:
    """The YAML key that says where a role's tokenizer is."""
    return f"{role}.model_args.{'tokenizer_path' if args.tokenizer_path else 'model_name_or_path'}"


def same_tokens(one: PreTrainedTokenizerBase, other: PreTrainedTokenizerBase) -> bool:
    """True if a conversation is the same token ids in both: vocabulary, way of splitting and chat template."""
    return one.chat_template == other.chat_template and _pipeline(one) == _pipeline(other)


def _pipeline(tokenizer: PreTrainedTokenizerBase) -> object:
    """How a text is cut into entries of the vocabulary, and becomes one again."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return type(tokenizer), tokenizer.get_vocab()
    whole = json.loads(backend.to_str())
    model = {key: value for key, value in whole["model"].items() if value not in (None, "")}
    return model, *(whole[part] for part in ("normalizer", "pre_tokenizer", "decoder", "added_tokens"))
