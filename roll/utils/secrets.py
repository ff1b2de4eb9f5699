"""Secrets in settings and texts, and how to keep them out of logs and dumps."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any

MASK = "***"

_SECRET_ANYWHERE = re.compile(
    r"(^|_)(secrets?|passw(or)?d|pwd|passphrase|credentials?|creds|authorization|cookie|bearer|pat|netrc|jwt|webhook|alert_url"
    r"|(api|access|account|private|secret|encryption|signing|ssh|deploy|service|host)_?keys?|id_(rsa|ed25519)"
    r"|(basic|docker|http|proxy)_?auth|connection_string"
    r"|(api|access|auth|bearer|refresh|session|hf)_?tokens?)(_|$)"
)
_SECRET_AT_END = re.compile(r"(^|_)(keys?|token|auth|pass|sas|pem)$")
_WHERE_IT_IS = re.compile(r"_(path|file|dir|folder|var|mode)$")
_MAYBE_SECRET = re.compile(r"(^|_)tokens$")  # of a list of them, or of numbers of tokens
_COLUMN_NAME = re.compile(
    r"(^|_)(image|video|audio|text|prompt|question|query|instruction|input|output|response|answer|solution|truth|label"
    r"|dict|messages?|role|content|chosen|rejected|margin|tag|domain|group|id|index|column|data|score|reward|sort|state|stats"
    r")_keys?$"
)
_VOCABULARY_TOKEN = re.compile(r"(^|_)(eos|bos|pad|unk|sep|cls|mask|stop|start|end|begin|think|image|video)_token$")

# What a secret looks like in a text: by its form, by its place in a URL, or by the name before it.

_FORMS = re.compile(
    r"-----BEGIN[ A-Z0-9]*PRIVATE KEY-----.*?(?:-----END[ A-Z0-9]*PRIVATE KEY-----|\Z)"
    r"|(?<![\w-])(?:"
    r"eyJ[\w-]{5,}\.eyJ[\w-]{5,}(?:\.[\w-]+)*"  # a JWT: header, payload, signature
    r"|(?:AKIA|ASIA)[A-Z0-9]{16}|AIza[\w-]{30,}"
    r"|sk-(?:[\w-]{0,40}-)?(?=[A-Za-z]*\d)[A-Za-z0-9]{10,}[\w-]*"
    # what issuers of tokens write before one, and then a word that is no word
    r"|(?:[spr]k|gsk|hf|gh[a-z]|github_pat|glpat|xox[a-z]|xai|npm|pypi|nvapi|tgp|r8|dckr_pat|wandb_v1)[-_]"
    r"(?:[\w-]{0,40}[-_])?[A-Za-z0-9]{16,}[\w-]*"
    r")",
    re.DOTALL,
)
_URL_CREDENTIALS = re.compile(r"(?<=://)[^/\s@'\"]++(?=@)")
_URL_SIGNATURE = re.compile(r"(?<=[?&])[\w.-]*(?:signature|sig)=([^&\s#'\"]+)", re.IGNORECASE)
_URL_PATH = re.compile(r"(?<=://)[^\s?#'\"<>]+")
_WORD = re.compile(r"[A-Za-z0-9]{16,}")
_CHUNK = re.compile(r"[A-Z]?[a-z]+|[A-Z]+|\d+")
_BEARER = re.compile(r"\bBearer\s+([\w.~+/-]{8,}=*)")
# `--name value`, `name=value`, `name: value`, `"name": "value"`; the value is looked at, so that it may be a name too
_NAMED = re.compile(
    r"(?<![\w.-])(-{0,2}[A-Za-z_][\w.-]*+)(['\"]?\s?[:=]\s?['\"]?|\s+['\"]?)(?:(?:Bearer|Basic|Token)\s+)?+"
    r"(?=([^\s'\",;&(){}\[\]]+))"
)
_TASKS = ("custom_envs", "rewards", "eval_sets")  # what is named below them are tasks, such as a game SecretWord
_NO_VALUE = re.compile(r"[$<%*=]|(?:none|null|true|false)$", re.IGNORECASE)


@lru_cache(4096)
def is_secret_key(key: str) -> bool:
    """Whether a value under this name is a secret, judged by the words in the name: `HF_TOKEN`, `judge_api_key`,
    `dbPassword` are; `max_new_tokens`, `eos_token` are not."""
    words = _key_words(key)
    if _WHERE_IT_IS.search(words) or key == "PWD":  # the shell's working directory
        return False
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


def _looks_secret(text: str) -> bool:
    """True of letters and digits in one piece, unless they are a word and its number, such as row12345."""
    return any(re.search(r"\d[A-Za-z]", run) for run in re.findall(r"[A-Za-z0-9]{8,}", text))


def _is_random(word: str) -> bool:
    """True of a long word in which upper case, lower case and digits change all the time; no digest, no name."""
    mixed = re.search("[a-z]", word) and re.search("[A-Z]", word) and re.search("[0-9]", word)
    return bool(mixed) and len(word) <= 2.5 * len(_CHUNK.findall(word))


def _is_named_secret(name: str, mark: str, value: str) -> bool:
    """Whether the value that follows a name in a text is a secret; `mark` is what stands between them."""
    is_flag, is_assigned = name.startswith("--") and ":" not in mark, mark.strip("'\"") == "="
    if not (is_flag or "=" in mark or ":" in mark) or _NO_VALUE.match(value) or not _may_name_secret(name):
        return False
    if value.isupper() and _may_name_secret(value):  # the variable that holds it
        return False
    is_sure = bool(_SECRET_ANYWHERE.search(_key_words(name)))
    is_sure = is_sure or (
        is_secret_key(name) and ((name.isupper() and "_" in name) or (is_flag and not name.endswith("key")))
    )
    if is_sure and (is_flag or is_assigned or (mark[-1] in "'\"" and len(value) >= 6)):
        return True
    return _looks_secret(value) or (is_sure and len(value) >= 6 and any(character.isdigit() for character in value))


def _spans(text: str) -> Iterator[tuple[int, int]]:
    yield from (match.span() for match in _FORMS.finditer(text))
    yield from (match.span(1) for match in _BEARER.finditer(text))
    for match in _NAMED.finditer(text):
        if _is_named_secret(*match.groups()):
            yield match.span(3)
    if "://" in text:
        yield from (match.span() for match in _URL_CREDENTIALS.finditer(text))
        yield from (match.span(1) for match in _URL_SIGNATURE.finditer(text))
        for path in _URL_PATH.finditer(text):
            yield from (word.span() for word in _WORD.finditer(text, *path.span()) if _is_random(word[0]))


def mask(text: str, secrets: Iterable[str] = ()) -> str:
    """The text without the given secrets, and without what is one by its form or by the name before it."""
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, MASK)
    parts, place = [], 0
    for start, end in sorted(_spans(text)):
        if start >= place:
            parts += text[place:start], MASK
        place = max(place, end)
    return "".join((*parts, text[place:]))


def _mapped(node: Any, leaf: Callable[[Any, str], Any], name: str = "", above: str = "") -> Any:
    """The nested value with each leaf replaced by `leaf(value, name)`, where name is the nearest name above it that may
    be one of secrets, or "". In a list `--name` is the name of the item after it. `above`: the key of `node`."""
    if isinstance(node, Mapping):
        keys = {key: key if above not in _TASKS and _may_name_secret(key) else name for key in map(str, node)}
        return {key: _mapped(child, leaf, keys[str(key)], str(key)) for key, child in node.items()}
    if isinstance(node, list | tuple | set | frozenset):
        flags = [str(item) if str(item).startswith("--") and _may_name_secret(str(item)) else "" for item in node]
        return [_mapped(child, leaf, name or flag) for child, flag in zip(node, ["", *flags], strict=False)]
    return leaf(node, name)


def find_secrets(value: Any) -> frozenset[str]:
    """The secret texts in a nested configuration, to be masked wherever they turn up (SecretFilter, mask)."""
    secrets: set[str] = set()

    def collect(node: Any, name: str) -> None:
        if isinstance(node, str):
            if _is_secret_under(name, node) and _is_worth_masking(name, node):
                secrets.add(node)
            found = [node[start:end] for start, end in _spans(node)]
            found += [credentials.split(":", 1)[-1] for credentials in _URL_CREDENTIALS.findall(node)]
            secrets.update(text for text in found if len(text) >= 6)

    _mapped(value, collect)
    return frozenset(secrets)


def redact(config: Mapping[str, Any]) -> dict[str, Any]:
    """A copy that is safe to write, print or upload: values of secret names become `***`, unless they are unset (None,
    ""), and so do the same texts elsewhere, and what `mask` knows."""
    secrets = find_secrets(config)

    def copy(node: Any, name: str) -> Any:
        if isinstance(node, str):
            return MASK if _is_secret_under(name, node) else mask(node, secrets)
        is_number = isinstance(node, int | float) and not isinstance(node, bool)
        return MASK if is_number and is_secret_key(name) else node

    return _mapped(config, copy)


@lru_cache(4096)
def _may_name_secret(name: str) -> bool:
    return is_secret_key(name) or bool(_MAYBE_SECRET.search(_key_words(name)))


def _is_secret_under(name: str, text: str) -> bool:
    return bool(text) and (is_secret_key(name) or (bool(name) and _looks_secret(text)))
