"""What is wrong with a configuration: one `Problem` per finding, and the words to suggest something better."""

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

ENTRY = re.compile(r"(custom_envs|rewards)\.([^.:\s]+)([.:\s].*)", re.DOTALL)


Whose = Literal["run", "place", "machine"]


@dataclass(frozen=True)
class Problem:
    """A finding and the YAML paths it depends on. A path that is itself broken silences the findings built on it.

    Every problem stops a start. `of`: what would have to change, and so what a plan says of it. run: the settings, the
    model or the user's code; a plan fails. place: a file, a folder or a login that this machine lacks; a plan fails,
    unless it is made for another machine. machine: a package, a GPU or the hub; a plan lists it as not checked."""

    text: str
    keys: tuple[str, ...] = ()
    of: Whose = "run"

    def __str__(self) -> str:
        return self.text


def nearest(word: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """The known word most like this one, if any is alike.

    Example: nearest("learning_rat", ["learning_rate", "seed"]) == "learning_rate"
    """
    matches = difflib.get_close_matches(word.lower(), list(known), n=1, cutoff=cutoff)
    return matches[0] if matches else None


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A sentence with the nearest known word, or nothing."""
    match = nearest(word, known)
    return f" Did you mean {match}?" if match else ""


def together(texts: Iterable[str]) -> list[str]:
    """Texts that say the same of several entries of a mapping as one text; others once each, in order. A full stop
    makes no difference.

    Example: ["custom_envs.A.max_steps: no", "custom_envs.B.max_steps: no"] -> ["custom_envs.{A, B}.max_steps: no"]
    """
    entries: dict[tuple[str, str], list[str]] = {}
    for text in {text.rstrip("."): text for text in texts}.values():
        match = ENTRY.fullmatch(text)
        names = entries.setdefault((match[1], match[3]) if match else ("", text), [])
        if match and match[2] not in names:
            names.append(match[2])
    return [
        f"{mapping}.{names[0] if len(names) == 1 else '{' + ', '.join(names) + '}'}{rest}" if names else rest
        for (mapping, rest), names in entries.items()
    ]


def ids_text(ids: Iterable[int]) -> str:
    """Device ids for people. Example: ids_text([0, 1, 2, 3, 8]) == "0..3, 8"; ids_text([0, 2, 4, 6]) == "0..6 by 2"."""
    parts: list[str] = []
    rest = list(ids)
    while rest:
        run, step = 1, rest[1] - rest[0] if len(rest) > 1 else 0
        while step > 0 and run < len(rest) and rest[run] - rest[run - 1] == step:
            run += 1
        if run >= 3 or (run == 2 and step == 1):
            parts.append(f"{rest[0]}..{rest[run - 1]}" + (f" by {step}" if step > 1 else ""))
        else:
            run = 1
            parts.append(str(rest[0]))
        rest = rest[run:]
    return ", ".join(parts)
