"""The tokenizer of a model directory or hub id."""

from __future__ import annotations

from transformers import AutoTokenizer, PreTrainedTokenizerBase

from roll.errors import ConfigError
from roll.utils.paths import look_at


def load_tokenizer(model_name_or_path: str) -> PreTrainedTokenizerBase:
    """Raises ConfigError when there is none. Code that comes with a model is not run."""
    try:
        return AutoTokenizer.from_pretrained(model_name_or_path, trust_remote_code=False)
    except (OSError, ValueError) as error:
        text = f"pretrain: no tokenizer can be loaded from {model_name_or_path}: {error}"
        if not look_at(model_name_or_path).is_directory:
            text = (
                f"{text.rstrip('. ')}. It is no directory of this machine, so it was taken for an id of the hub. Where "
                f"the hub cannot be reached, fetch the model elsewhere (hf download {model_name_or_path} --local-dir "
                "...) and give that directory; or correct the name."
            )
        raise ConfigError(text) from error
