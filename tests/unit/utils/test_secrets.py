import logging
import string
import sys
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

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


LETTERS = string.ascii_letters + string.digits
VALUES = st.text(LETTERS, min_size=20, max_size=44).map(lambda text: f"{text}a1B2c3D4")

TEXTS = [
    "python a.py --token {}", "python a.py --api-key={} --steps 3", "env API_KEY={} python a.py",
    "MY_SERVICE_KEY={} ./go",
    "curl -H 'Authorization: Bearer {}' http://h/", "Authorization: Basic {}", '{{"api_key": "{}", "n": 1}}',
    "{{'x-api-key': '{}'}}", "export DB_PASSWORD='{}'", "https://me:{}@host/v1", "postgres://u:{}@h:5432/d",
    "https://h/run?apikey={}&n=2", "https://s3/x?X-Amz-Signature={}", "error: token={}", "++judge.api_key={}",
    "got sk-proj-{} there", "hf_{}", "(ghp_{})", "github_pat_{}", "glpat-{}", "xoxb-1-{}", "sk-ant-api03-{}",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIi{}.{}",
    "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4\n{}\n-----END RSA PRIVATE KEY-----",
    "-----BEGIN PRIVATE KEY-----\n{}",
]  # fmt: skip


@pytest.mark.parametrize("text", TEXTS)
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


def test_an_access_key_of_amazon_is_known_by_its_form():
    assert mask("key AKIAIOSFODNN7EXAMPLE") == "key ***"


def test_only_what_is_random_in_the_path_of_an_address_is_a_secret():
    digest = "f3a9c0d1e2b3a4c5d6e7f8091a2b3c4d5e6f7a8b"
    for path in ("v1/chat/completions", f"resolve/{digest}/config.json", "Qwen/DeepSeekMath7BRL0324", "2026-11-29"):
        assert mask(f"https://h/{path}") == f"https://h/{path}"
    assert mask("see https://h/v1/S3cr3tV4lue9876543?n=1") == "see https://h/v1/***?n=1"


@pytest.mark.parametrize(
    "text",
    ["--max_tokens 1024", "max_new_tokens=2048", "pad_token: '<|endoftext|>'", "tokens: [15, 16]",
     "--token-file a/b.txt",
     "api_key: expected a text", "judge_api_key is missing", "--api-key {api_key}", "--key=$KEY",
     "export TOKEN=${TOKEN}",
     "tokenizer=Qwen/Qwen3-8B-Base", "stop_tokens=['<|im_end|>']", "KeyError: 'row12345'", "PyJWT==2.10.1",
     "token=151643", "api_key=None", "sky launch --secret WANDB_API_KEY", "hf_infer with hf_transfer", "sk-learn 1.5",
     '"Authorization": "Bearer " + key', "num_tokens: 123456789", "prompt_key=question2024", "a mask-token-free-text",
     "PWD=/home/user1", "sort key: row12345"],
)  # fmt: skip
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
