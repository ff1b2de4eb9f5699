"""The tokenizer of a model directory or hub id."""

from __future__ import annotations

import json

from transformers import AutoTokenizer, PreTrainedTokenizerBase

from roll.configs.model import ModelArgs
from roll.errors import ConfigError
from roll.models.hub import local_model
from roll.utils.paths import look_at


def tokenizer_of(args: ModelArgs, key: str = "pretrain") -> PreTrainedTokenizerBase:
    """That of a role, wherever it is."""
    return load_tokenizer(local_model(args).tokenizer_name, key)


def load_tokenizer(model_name_or_path: str, key: str = "pretrain") -> PreTrainedTokenizerBase:
    """Raises ConfigError when there is none. Code that comes with a model is not run. `key`: the YAML's, for that."""
    try:
        tokenizer = AutoTokenizer.from_pretrained(model_name_or_path, trust_remote_code=False)
    except (OSError, ValueError) as error:
        text = f"{key}: no tokenizer can be loaded from {model_name_or_path}: {error}"
        if not look_at(model_name_or_path).is_directory:
            text = (
                f"{text.rstrip('. ')}. It is no directory of this machine, so it was taken for an id of the hub. Where "
                f"the hub cannot be reached, fetch the model elsewhere (hf download {model_name_or_path} --local-dir "
                "...) and give that directory; or correct the name."
            )
        raise ConfigError(text) from error
    if not tokenizer("text", add_special_tokens=False)["input_ids"]:
        # transformers makes one without a vocabulary where config.json says qwen2 or qwen3 and there are no other files
        raise ConfigError(
            f"{key}: {model_name_or_path} has no files of a tokenizer. Copy them there, or say in "
            "model_args.tokenizer_path where they are"
        )
    return tokenizer


def tokenizer_key(role: str, args: ModelArgs) -> str:
    """The YAML key that says where a role's tokenizer is."""
    return f"{role}.model_args.{'tokenizer_path' if args.tokenizer_path else 'model_name_or_path'}"


def same_tokens(one: PreTrainedTokenizerBase, other: PreTrainedTokenizerBase) -> bool:
    """True if a conversation is the same token ids in both: vocabulary, way of splitting and chat template."""
    if one.get_vocab() != other.get_vocab() or one.chat_template != other.chat_template:
        return False
    return _pipeline(one) == _pipeline(other)


def _pipeline(tokenizer: PreTrainedTokenizerBase) -> object:
    """How a text is cut into entries of the vocabulary."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return type(tokenizer)
    whole = json.loads(backend.to_str())
    return [whole.get(part) for part in ("normalizer", "pre_tokenizer", "model")]
