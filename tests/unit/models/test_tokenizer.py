"""Tokenizers that cannot be loaded."""

from pathlib import Path

import pytest

from roll.errors import ConfigError
from roll.models.tokenizer import load_tokenizer


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
