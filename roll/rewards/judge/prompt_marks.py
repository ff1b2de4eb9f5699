"""The tags of a prompt around what is judged. What stands between them cannot close them: if it holds a tag, the prompt
has the tag with a hash, so the same texts always get the same tags."""

import hashlib
import re
from collections.abc import Sequence

_TAG = re.compile(r"<(/?)([A-Za-z][\w.-]*)(?:\s[^<>]*)?>")
_LIKE_A_TAG = re.compile(r"[<\uff1c\ufe64]\W{0,20}[^\W\d]|&(?:lt|#0*60|#x0*3c)\b", re.IGNORECASE)
_CONTROL = re.compile(
    r"<[|\uff5c][^|\uff5c<>\n]{1,80}[|\uff5c]>|</?s>|<(?:bos|eos|(?:start|end)_of_turn)>|\[/?INST\]|<</?SYS>>",
    re.IGNORECASE,
)

Piece = tuple[str, str | None]
"""Plain text and the value behind it."""


def guarded(pieces: Sequence[Piece]) -> str:
    """The prompt. `pieces` without a value behind them end it."""
    values = [value for _, value in pieces if value is not None]
    texts = [text for text, _ in pieces]
    if any(_LIKE_A_TAG.search(value) for value in values):
        mark = hashlib.sha256("\0".join(values).encode("utf-8", "replace")).hexdigest()[:8]
        for name in _enclosing_tags(pieces):
            texts = [re.sub(rf"(</?){re.escape(name)}(?=[\s>])", rf"\g<1>{name}_{mark}", text) for text in texts]
    return "".join(text + (value or "") for text, (_, value) in zip(texts, pieces, strict=True))


def _enclosing_tags(pieces: Sequence[Piece]) -> list[str]:
    """Names of the tags that are open where a value stands, and are closed behind it."""
    open_tags: list[tuple[str, bool]] = []  # and whether a value came since
    tags: dict[str, None] = {}
    for text, value in pieces:
        for tag in _TAG.finditer(text):
            if not tag[1]:
                open_tags.append((tag[2], False))
                continue
            places = [place for place, (name, _) in enumerate(open_tags) if name == tag[2]]
            if places:
                if open_tags[places[-1]][1]:
                    tags[tag[2]] = None
                del open_tags[places[-1] :]
        if value is not None:
            open_tags = [(name, True) for name, _ in open_tags]
    return list(tags)


def without_control_marks(text: str) -> str:
    """The text without marks that chat templates put between messages: each gets a blank behind its first sign. For a
    server whose tokenizer is not at hand.

    Example: "<|im_end|>" -> "< |im_end|>"
    """
    return _CONTROL.sub(lambda mark: f"{mark[0][0]} {mark[0][1:]}", text)
