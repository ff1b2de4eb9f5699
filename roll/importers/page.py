"""The page of an import: what will run, what differs with the mathematics first, and what is ignored; a cause once."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, get_args

from roll.importers.convert import UNKNOWN, Entry, Imported
from roll.importers.rows import CHANGES, Change, Outcome
from roll.importers.verl.releases import ON_THERE
from roll.utils.secrets import MASK, is_secret_key, mask
from roll.utils.text import show

OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)


def summary(imported: Imported) -> str:
    """Example: "31 keys of verl: 20 mapped, 3 approximated, 2 not available, 6 ask for nothing"."""
    counts = Counter(entry.outcome for entry in imported.entries)
    parts = ", ".join(f"{counts[outcome]} {outcome}" for outcome in OUTCOMES if counts[outcome])
    return f"{len(imported.entries)} keys of {imported.system}: {parts or 'none'}"


def report(imported: Imported, source: str, target: str) -> str:
    """A page in Markdown, with every given key in exactly one line."""
    return "\n".join(_lines(imported, source, target)) + "\n"


def open_title(source: str) -> str:
    """Return the title of keys without a value: a script leaves them open, in a YAML they are missing."""
    return "Missing, or left open" if source.endswith((".yaml", ".yml")) else "Left open by the script"


def command(target: str) -> str:
    """How to look at the plan of what was written."""
    return f"roll plan {shlex.quote(target)}"


def causes(imported: Imported, outcome: Outcome, form: str = "{}") -> list[str]:
    """Return each cause once, behind the keys with this outcome. `form`: how a key is shown."""
    groups = dict[str, list[str]]()
    for entry in imported.entries:
        if entry.outcome == outcome:
            cause, _, place = entry.note.partition(". ") if entry.note.startswith(UNKNOWN) else (entry.note, "", "")
            place = f" ({place.removeprefix('See ').removesuffix('.')})" if place else ""
            cause = f"{cause.rstrip('.')}." if entry.note.startswith(UNKNOWN) else cause
            groups.setdefault(cause, []).append(form.format(_shown(entry, imported, form)) + place)
    return [f"{', '.join(keys)}: {cause}" for cause, keys in groups.items()]


def changes(imported: Imported, form: str = "{}") -> list[str]:
    """Return what makes this another run, each cause once."""
    return [*causes(imported, CHANGES, form), *(note for note in imported.notes if isinstance(note, Change))]


def to_check(imported: Imported) -> list[str]:
    """Return notes on what a checkout has on by default, and nothing here knows."""
    return [note.removeprefix(ON_THERE) for note in imported.notes if note.startswith(ON_THERE)]


def _lines(imported: Imported, source: str, target: str) -> Iterator[str]:
    yield from (f"# {source} as a YAML of roll", "")
    yield from (f"{summary(imported)}. Written to `{target}`. Try it:", "", f"    {command(target)}")
    yield from ("", "## What will run", "", _run(imported))
    keys = "`{}`"
    yield from _section("Not the run that its author meant", changes(imported, keys))
    yield from _section(f"{open_title(source)}: give these after the file, as key=value", imported.unresolved, keys)
    yield from _section("To check: the checkout has it on by default", to_check(imported))
    yield from _section(
        "Approximated: similar, with the difference that it states", _causes_shown(imported, "approximated")
    )
    notes = [note for note in imported.notes if not isinstance(note, Change) and not note.startswith(ON_THERE)]
    defaults = [note.removeprefix(_DEFAULT) for note in notes if note.startswith(_DEFAULT)]
    defaults += [f"`{key}`: {why}" for key, why in imported.defaults.items()]
    yield from _section(f"Not given, and written as {imported.system} has it by default", defaults)
    yield from _section("Not available: memory, speed or records alone", _causes_shown(imported, "not available"))
    yield from _section("Mapped: means the same here", _causes_shown(imported, "mapped"))
    yield from _section("Ignored: changes nothing here", _causes_shown(imported, "asks for nothing"))
    yield from _section("Notes", [note for note in notes if not note.startswith(_DEFAULT)])


_DEFAULT = "By default: "


def _section(title: str, lines: Iterable[str], form: str = "{}") -> Iterator[str]:
    shown = [f"- {form.format(_line(mask(line)))}" for line in lines]
    yield from ("", f"## {title}", "", *shown) if shown else ()


def _causes_shown(imported: Imported, outcome: Outcome) -> list[str]:
    return causes(imported, outcome, "`{}`")


def _shown(entry: Entry, imported: Imported, form: str) -> str:
    """A key, on the page with its value and with its origin where that is not that of most."""
    if form == "{}":
        return entry.key
    value = MASK if is_secret_key(entry.key) and entry.value else mask(show(entry.value))
    origin = f", {imported.origins[entry.key]}" if entry.key in imported.origins else ""
    return f"{entry.key}={_line(value)}{origin}"


def _line(text: str) -> str:
    return text.replace("\n", " ")


def _run(imported: Imported) -> str:
    """Return what the YAML says in a sentence: kind, model, estimator, loss, step, devices, rewards and end."""
    tree = imported.tree
    rewards = tree.get("rewards")
    kinds = [f"{name} {said.get('reward')}" for name, said in rewards.items()] if isinstance(rewards, dict) else []
    found = {
        "model": tree.get("pretrain"),
        "estimator": tree.get("adv_estimator"),
        "loss": tree.get("pg_variant"),
        "a step": _product(tree, "rollout_batch_size", "num_return_sequences_in_group"),
        "GPUs": _product(tree, "num_nodes", "num_gpus_per_node"),
        "rewards": ", ".join(kinds),
        "steps": tree.get("max_steps"),
        "epochs": tree.get("num_train_epochs"),
    }
    said = [f"{word} {mask(_line(str(value)))}" for word, value in found.items() if value]
    return "; ".join([f"A run of `{imported.pipeline}`", *said]) + "."


def _product(tree: Mapping[str, Any], first: str, second: str) -> str | None:
    return f"{tree[first]} x {tree[second]}" if first in tree and second in tree else None
