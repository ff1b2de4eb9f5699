import logging
import sys

import pytest

from roll.utils.secrets import find_secrets, is_secret_key, mask, redact


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
     "keyboard", "monkey", "num_tokens", "sequence_length", "token_mean"],
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


def test_ordinary_words_under_a_vague_key_are_not_masked_in_other_texts():
    """`data_key: answer` would otherwise put *** into every log line that says "answer"."""
    assert find_secrets({"data_key": "answer", "api_key": "abc", "judge_api_key": "secret-judge"}) == {"secret-judge"}


def test_longer_secrets_are_masked_before_their_own_beginnings():
    assert mask("x abcdef-123 y", ["abcdef", "abcdef-123"]) == "x *** y"


def test_urls_without_credentials_stay_as_they_are():
    text = "see https://host:80/a@b and mail me@there.org"
    assert mask(text) == text


def test_redacting_twice_changes_nothing_more():
    config = {"api_key": "sk-1234567890", "url": "http://u:pw123456@h/"}
    assert redact(redact(config)) == redact(config)


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
