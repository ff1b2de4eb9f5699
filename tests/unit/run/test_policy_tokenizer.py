"""A tokenizer that is not beside its model."""

import json
from pathlib import Path

import pytest

from roll.configs.checks.rl import tokenizer_problems
from roll.configs.sections.model import ModelArgs
from roll.errors import ConfigError
from roll.models.tiny import build_tokenizer
from roll.models.tokenizer import EngineTokenizer
from roll.run.policy_tokenizer import policy_tokenizer
from roll.run.start.preflight import machine_report
from tests.helpers.configs import config


@pytest.fixture
def apart(tmp_path: Path, tiny_model_dir: Path) -> tuple[Path, Path]:
    """(a model without a tokenizer, its tokenizer)."""
    model, tokenizer = tmp_path / "model", tmp_path / "tokenizer"
    for folder, is_of_it in ((model, False), (tokenizer, True)):
        folder.mkdir()
        for file in tiny_model_dir.iterdir():
            if ("token" in file.name or file.suffix == ".jinja") is is_of_it:
                (folder / file.name).symlink_to(file)
    return model, tokenizer


def test_the_tokenizer_is_read_where_tokenizer_path_says(apart: tuple[Path, Path], tiny_model_dir: Path) -> None:
    model, own = (str(folder) for folder in apart)
    found = policy_tokenizer("actor_train", ModelArgs(model_name_or_path=model, tokenizer_path=own))
    whole = policy_tokenizer("actor_train", ModelArgs(model_name_or_path=str(tiny_model_dir)))
    assert found.get_vocab() == whole.get_vocab() and found.chat_template == whole.chat_template
    with pytest.raises(
        ConfigError, match="^pretrain: .*/model has no files of a tokenizer. Copy them there, or say in"
    ):
        policy_tokenizer("actor_train", ModelArgs(model_name_or_path=model))
    with pytest.raises(ConfigError, match="^actor_train.model_args.tokenizer_path: no tokenizer can be loaded from"):
        policy_tokenizer("actor_train", ModelArgs(model_name_or_path=model, tokenizer_path=f"{own}x/"))


def test_engines_read_the_tokenizer_and_refuse_one_that_is_too_large(apart: tuple[Path, Path]) -> None:
    model, own = apart
    (model / "config.json").unlink()
    (model / "config.json").write_text(json.dumps({"vocab_size": 7}))
    with pytest.raises(ConfigError, match=r"has ids up to \d+, but .*/model has 7 embeddings \(vocab_size\)"):
        policy_tokenizer("actor_train", ModelArgs(model_name_or_path=str(model), tokenizer_path=str(own)))
    model, own = (str(folder) for folder in apart)
    assert EngineTokenizer(ModelArgs(model_name_or_path=model, tokenizer_path=own)).path == own


def test_the_engine_of_a_policy_has_its_tokenizer_and_no_other() -> None:
    made = config({"actor_train.model_args": {"tokenizer_path": "org/tokens"}})
    assert made.actor_infer.model_args.tokenizer_path == "org/tokens"
    assert list(tokenizer_problems(made)) == []
    (problem,) = tokenizer_problems(config({"actor_infer.model_args": {"tokenizer_path": "org/tokens"}}))
    assert problem.text.startswith(
        "actor_infer.model_args.tokenizer_path: org/tokens is not actor_train.model_args.tokenizer_path: that of the "
        "model."
    )


def test_a_directory_without_a_tokenizer_is_told_before_the_run(tmp_path: Path) -> None:
    def said(place: str) -> list[str]:
        made = config({"actor_train.model_args": {"tokenizer_path": place}, "track_with": []})
        problems = [problem.text for problem in machine_report(made).problems]
        return [text for text in problems if text.startswith("actor_train.model_args.tokenizer_path")]

    key = "actor_train.model_args.tokenizer_path"
    assert said("org/tokens") == []
    assert said("/nowhere") == [
        f"{key}: there is no directory /nowhere. Correct the path, or give a hub id (owner/name)."
    ]
    assert said(str(tmp_path))[0].startswith(f"{key}: {tmp_path} holds no tokenizer: none of tokenizer_config.json, ")
    build_tokenizer().save_pretrained(tmp_path)
    assert said(str(tmp_path)) == []
