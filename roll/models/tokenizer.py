"""The tokenizer of a model directory or hub id."""

from __future__ import annotations

from transformers import AutoTokenizer, PreTrainedTokenizerBase

from roll.errors import ConfigError


def load_tokenizer(model_name_or_path: str) -> PreTrainedTokenizerBase:
    """Raises ConfigError when there is none. Code that comes with a model is not run."""
    try:
        return AutoTokenizer.from_pretrained(model_name_or_path, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise ConfigError(f"pretrain: no tokenizer can be loaded from {model_name_or_path}: {error}") from error
