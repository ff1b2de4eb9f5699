import logging
import string
import sys
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from roll.utils.secrets import find_secrets, is_secret_key, mask, redact
from tests.helpers.cases import cases


@pytest.mark.parametrize(
    "key",
    ["HF_TOKEN", "api_key", "judge_api_key", "WANDB_API_KEY", "apiKey", "dbPassword", "AWS_ACCESS_KEY_ID", "secret",
     "OPENAI_API_KEYS", "Authorization", "token", "auth-token", "private_key", "GITHUB_PAT", "AUTH", "BASIC_AUTH",
     "NETRC", "SSH_KEY", "SSH_KEY_DATA", "DB_PASS", "AZURE_SAS", "SLACK_WEBHOOK_URL", "id_rsa", "JWT",
     "DOCKER_AUTH_CONFIG", "key"],
)  # fmt: skip
def test_names_of_secrets_are_recognised(key):
    assert is_secret_key(key)


@pytest.mark.parametrize(
    "key",
    ["max_new_tokens", "max_tokens_per_microbatch_in_train", "add_token_level_kl", "eos_token", "pad_token",
     "image_key", "prompt_key", "prompt_dict_keys", "ground_truth_key", "messages_key", "PATH", "AUTHOR",
     "RAY_AUTH_MODE", "format_pattern", "bypass", "compass", "patience", "tokenizer", "TOKENIZERS_PARALLELISM",
     "keyboard", "monkey", "RAY_AUTH_TOKEN_PATH", "api_key_var", "token_file", "num_tokens",
     "sequence_length", "token_mean"],
)  # fmt: skip
def test_ordinary_names_with_token_or_key_inside_are_not_secrets(key):
    assert not is_secret_key(key)


def test_redact_masks_every_form_in_which_a_secret_appears_in_a_config():
    config = {
        "exp_name": "demo",
        "max_steps": 5,
        "tracker_kwargs": {"api_key": "sk-1234567890", "login_kwargs": {"api_key": "sw-abc"}, "project": "roll"},
        "system_envs": {"HF_TOKEN": "hf_abcdefgh", "OMP_NUM_THREADS": "1", "NOTE": "uses hf_abcdefgh"},
        "rewards": {"judge": {"judge_api_url": "https://bob:pa55word@host:80/v1?api_key=zzz&n=1"}},
        "overrides": ["tracker_kwargs.api_key=sk-1234567890", "max_steps=5"],
        "password": 12345678,
        "unset_api_key": None,
    }
    redacted = redact(config)
    assert redacted == {
        "exp_name": "demo",
        "max_steps": 5,
        "tracker_kwargs": {"api_key": "***", "login_kwargs": {"api_key": "***"}, "project": "roll"},
        "system_envs": {"HF_TOKEN": "***", "OMP_NUM_THREADS": "1", "NOTE": "uses ***"},
        "rewards": {"judge": {"judge_api_url": "https://***@host:80/v1?api_key=***&n=1"}},
        "overrides": ["tracker_kwargs.api_key=***", "max_steps=5"],
        "password": "***",
        "unset_api_key": None,
    }
    assert config["system_envs"]["HF_TOKEN"] == "hf_abcdefgh", "the config itself is untouched"


def test_what_is_no_secret_stays():
    """`data_key: answer` would otherwise put *** into every log line that says "answer"."""
    assert find_secrets({"custom_envs": {"SecretWord": {"env_type": "secret_word:Game"}}}) == frozenset()
    assert find_secrets({"data_key": "answer", "api_key": "abc", "judge_api_key": "secret-judge"}) == {"secret-judge"}
    text = "see https://host:80/a@b and mail me@there.org"
    assert mask(text) == text
    digest = "f3a9c0d1e2b3a4c5d6e7f8091a2b3c4d5e6f7a8b"
    for path in ("v1/chat/completions", f"resolve/{digest}/config.json", "Qwen/DeepSeekMath7BRL0324", "2026-11-29"):
        assert mask(f"https://h/{path}") == f"https://h/{path}"
    assert mask("see https://h/v1/S3cr3tV4lue9876543?n=1") == "see https://h/v1/***?n=1"


def test_secrets_are_masked_once_and_by_their_form():
    assert mask("x abcdef-123 y", ["abcdef", "abcdef-123"]) == "x *** y"
    config = {"api_key": "sk-1234567890", "url": "http://u:pw123456@h/"}
    assert redact(redact(config)) == redact(config)
    assert mask("key AKIAIOSFODNN7EXAMPLE") == "key ***"


def test_secret_filter_masks_message_arguments_and_traceback():
    from roll.utils.logging import SecretFilter

    try:
        raise ValueError("login with sk-1234567890 failed")
    except ValueError:
        record = logging.LogRecord(
            "x", logging.ERROR, "f", 1, "%s at %s", ("sk-1234567890", "http://u:pw@h"), sys.exc_info()
        )
    assert SecretFilter(["sk-1234567890"]).filter(record)
    text = logging.Formatter().format(record)
    assert "sk-1234567890" not in text
    assert text.startswith("*** at http://***@h")
    assert "ValueError: login with *** failed" in text


LETTERS = string.ascii_letters + string.digits
VALUES = st.text(LETTERS, min_size=20, max_size=44).map(lambda text: f"{text}a1B2c3D4")


@cases("text")
@given(value=VALUES)
def test_no_secret_is_in_a_text_that_shows_by_a_form_a_flag_or_a_name_that_it_is_one(text: str, value: str):
    whole = text.format(*[value] * text.count("{}"))
    assert value not in mask(whole) and value not in str(redact({"command": whole, "args": [whole]}))
    assert mask(mask(whole)) == mask(whole)


@given(value=VALUES)
def test_a_secret_under_a_name_is_masked_wherever_the_settings_repeat_it(value: str):
    for config in (
        {"api_key": value}, {"tokens": [value]}, {"args": ["--api-key", value, "--steps", "3"]},
        {"deep": [{"headers": {"X-Auth": value}}]}, {"agent_command": f"python a.py --token {value}"},
    ):  # fmt: skip
        assert value not in str(redact({**config, "note": f"uses {value}"}))
        assert mask(f"log of {value}.", find_secrets(config)) == "log of ***."


@cases("text")
def test_ordinary_words_stay(text: str):
    assert mask(text) == text


def test_the_examples_and_the_pages_have_no_secrets():
    here = Path(__file__).parents[3]
    for path in here.glob("examples/*/*.yaml"):
        tree = yaml.safe_load(path.read_text())
        assert not isinstance(tree, dict) or redact(tree) == tree, path
    for path in [here / "README.md", *here.glob("docs/*.md")]:
        text = path.read_text().replace("postgresql://user@host", "")
        assert mask(text) == text, path
