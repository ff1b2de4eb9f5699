"""The words of an import: what became of every key, in the order in which it was written."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator
from typing import Any, get_args

import yaml

from roll.importers.convert import Entry, Imported
from roll.importers.rows import Outcome
from roll.utils.secrets import MASK, is_secret_key, mask
from roll.utils.text import show

OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)
_SHOWN: tuple[Outcome, ...] = ("changes the run", "not to be had", "approximated", "mapped", "asks for nothing")
_MEANINGS = {
    "mapped": "means the same here",
    "approximated": "similar, with the difference that it states",
    "changes the run": "without it this is not the run that its author meant",
    "not to be had": "has no counterpart; the reason, and the nearest thing",
    "asks for nothing": "changes nothing here",
}


def summary(imported: Imported) -> str:
    """Example: "31 keys of verl: 20 mapped, 3 approximated, 2 not to be had, 6 ask for nothing"."""
    counts = Counter(entry.outcome for entry in imported.entries)
    parts = ", ".join(f"{counts[outcome]} {outcome}" for outcome in OUTCOMES if counts[outcome])
    return f"{len(imported.entries)} keys of {imported.system}: {parts or 'none'}"


def report(imported: Imported, source: str, target: str) -> str:
    """A page in Markdown, with every given key in exactly one row."""
    return "\n".join(_lines(imported, source, target)) + "\n"


def open_title(source: str) -> str:
    """What keys without a value are called: a script leaves them open, in a YAML they are missing."""
    return "Missing, or left open" if source.endswith((".yaml", ".yml")) else "Left open by the script"


def _lines(imported: Imported, source: str, target: str) -> Iterator[str]:
    yield f"# {source} as a YAML of roll"
    yield ""
    yield f"{summary(imported)}. Written to `{target}`. Try it:"
    yield ""
    yield f"    {command(target)}"
    if imported.changes:
        yield from ("", "## Not the run that its author meant", "")
        yield from (f"- {_cell(mask(change))}" for change in imported.changes)
    if imported.left_open:
        yield from ("", f"## {open_title(source)}: give these after the file, as key=value", "")
        yield from (f"- `{key}`" for key in imported.left_open)
    for outcome in _SHOWN:
        entries = [entry for entry in imported.entries if entry.outcome == outcome]
        if entries:
            yield from ("", f"## {outcome[0].upper()}{outcome[1:]}: {_MEANINGS[outcome]}", "")
            yield from ("| key | value | |", "|---|---|---|")
            yield from map(_row, entries)
    if imported.defaults:
        yield from ("", f"## Not given, with another default in {imported.system} than here", "")
        yield from ("| key here | |", "|---|---|")
        yield from (f"| `{key}` | {_cell(why)} |" for key, why in imported.defaults.items())
    if imported.notes:
        yield from ("", "## Notes", "")
        yield from (f"- {_cell(note)}" for note in imported.notes)


def _row(entry: Entry) -> str:
    value = MASK if is_secret_key(entry.key) and entry.value else mask(show(entry.value))
    return f"| `{entry.key}` | `{_cell(value)}` | {_cell(mask(entry.note))} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def command(target: str) -> str:
    """How to look at the plan of what was written."""
    return f"roll plan {shlex.quote(target)}"


def yaml_text(imported: Imported, source: str) -> str:
    """The YAML with a line on where it comes from."""
    body = yaml.dump(_plain(imported.tree), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110)
    return f"# Imported from {source}, a configuration of {imported.system}; the report beside it says how.\n{body}"


class _Dumper(yaml.SafeDumper):
    """Writes YAML without anchors, which Hydra would copy."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _plain(node: Any) -> Any:
    """Scalars first, then sections: as people write it."""
    if isinstance(node, dict):
        items = sorted(node.items(), key=lambda item: isinstance(item[1], dict))
        return {key: _plain(value) for key, value in items}
    return [_plain(item) for item in node] if isinstance(node, list | tuple) else node
