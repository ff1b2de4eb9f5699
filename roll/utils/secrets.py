"""Secrets among the settings, and how to keep them out of logs and dumps."""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

MASK = "***"

_SECRET_ANYWHERE = re.compile(
    r"(^|_)(secrets?|passw(or)?d|pwd|passphrase|credentials?|creds|authorization|cookie|bearer|pat|netrc|jwt|webhook"
    r"|(api|access|account|private|secret|encryption|signing|ssh|deploy|service|host)_?keys?|id_(rsa|ed25519)"
    r"|(basic|docker|http|proxy)_?auth|connection_string"
    r"|(api|access|auth|bearer|refresh|session|hf)_?tokens?)(_|$)"
)
_SECRET_AT_END = re.compile(r"(^|_)(keys?|token|auth|pass|sas|pem)$")
_COLUMN_NAME = re.compile(
    r"(^|_)(image|video|audio|text|prompt|question|query|instruction|input|output|response|answer|solution|truth|label"
    r"|dict|messages?|role|content|chosen|rejected|margin|tag|domain|group|id|index|column|data|score|reward|sort|state|stats"
    r")_keys?$"
)
_VOCABULARY_TOKEN = re.compile(r"(^|_)(eos|bos|pad|unk|sep|cls|mask|stop|start|end|begin|think|image|video)_token$")

_URL_CREDENTIALS = re.compile(r"(?<=://)[^/\s@'\"]+(?=@)")
_URL_QUERY_SECRET = re.compile(
    r"(?<=[?&])([\w.-]*(?:key|token|secret|password|signature|sig)=)[^&\s#'\"]+", re.IGNORECASE
)
_ASSIGNMENT = re.compile(r"^\+{0,2}([\w.@/-]+)=(.+)$", re.DOTALL)


def is_secret_key(key: str) -> bool:
    """Whether a value under this name is a secret, judged by the words in the name.

    Example: `HF_TOKEN`, `judge_api_key`, `dbPassword`, `GITHUB_PAT` are; `max_new_tokens`, `eos_token`, `image_key`,
    `add_token_level_kl` are not.
    """
    words = _key_words(key)
    if _SECRET_ANYWHERE.search(words):
        return True
    return bool(_SECRET_AT_END.search(words)) and not (_VOCABULARY_TOKEN.search(words) or _COLUMN_NAME.search(words))


def _key_words(key: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", str(key)).replace("-", "_").replace(".", "_").lower()


def _is_worth_masking(key: str, text: str) -> bool:
    """False for what would be masked inside ordinary text: short values, words under a vague name."""
    if _SECRET_ANYWHERE.search(_key_words(key)):
        return len(text) >= 6
    return len(text) >= 8 and any(character.isdigit() for character in text)


def find_secrets(value: Any) -> frozenset[str]:
    """The secret texts in a nested configuration, to be masked wherever they turn up (SecretFilter, mask)."""
    secrets: set[str] = set()

    def visit(node: Any, key: str) -> None:
        """key: the nearest secret name above the node, or empty."""
        if isinstance(node, Mapping):
            for name, child in node.items():
                visit(child, name if is_secret_key(name) else key)
        elif isinstance(node, list | tuple | set | frozenset):
            for child in node:
                visit(child, key)
        elif isinstance(node, str):
            assignment = _ASSIGNMENT.match(node)
            if not key and assignment and is_secret_key(assignment[1]):
                key, node = assignment[1], assignment[2]
            if key and _is_worth_masking(key, node):
                secrets.add(node)
            secrets.update(part for part in _url_passwords(node) if _is_worth_masking("password", part))

    visit(value, "")
    return frozenset(secrets)


def _url_passwords(text: str) -> list[str]:
    return [credentials.split(":", 1)[-1] for credentials in _URL_CREDENTIALS.findall(text)]


def mask(text: str, secrets: Iterable[str] = ()) -> str:
    """The text without the given secrets and without credentials in URLs."""
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, MASK)
    if "://" in text:
        text = _URL_QUERY_SECRET.sub(rf"\g<1>{MASK}", _URL_CREDENTIALS.sub(MASK, text))
    return text


def redact(config: Mapping[str, Any]) -> dict[str, Any]:
    """A copy that is safe to write, print or upload.

    Values of secret names become `***`, and so do the same texts elsewhere, credentials in URLs, and the right side of
    `a.b.api_key=...` strings (command-line overrides). Unset ones (None, "") stay, so that a reader sees it.
    """
    secrets = find_secrets(config)

    def copy(node: Any, secret: bool) -> Any:
        if isinstance(node, Mapping):
            return {key: copy(child, secret or is_secret_key(key)) for key, child in node.items()}
        if isinstance(node, list | tuple | set | frozenset):
            return [copy(child, secret) for child in node]
        if isinstance(node, str):
            return _redact_text(node, secret, lambda text: mask(text, secrets))
        return MASK if secret and isinstance(node, int | float) and not isinstance(node, bool) else node

    return copy(config, False)


def _redact_text(text: str, secret: bool, masked: Callable[[str], str]) -> str:
    if secret:
        return MASK if text else text
    assignment = _ASSIGNMENT.match(text)
    if assignment and is_secret_key(assignment[1]):
        return f"{text[: assignment.start(2)]}{MASK}"
    return masked(text)
