"""Seeded damage to a configuration: its structure, its values, its text, its bytes, and overrides beside it."""

import math
import random
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

Path = tuple[Any, ...]


@dataclass
class Draft:
    """A configuration under change: a tree until it is written, then bytes."""

    tree: dict[str, Any]
    overrides: list[str] = field(default_factory=list)
    data: bytes = b""


@dataclass(frozen=True)
class Mutation:
    """One change; the seed decides what it hits, so that it does the same with or without the changes before it."""

    name: str
    seed: int

    def __str__(self) -> str:
        return f"{self.name}({self.seed})"


def mutations(rng: random.Random) -> tuple[Mutation, ...]:
    """Between one and four changes; those that need no file of their own more often, since they are quick to try."""
    kinds = rng.choices((TREE, OVERRIDES, TEXT), weights=(5, 3, 2), k=rng.choice((1, 1, 2, 3, 4)))
    return tuple(Mutation(rng.choice(sorted(kind)), rng.randrange(1 << 32)) for kind in kinds)


def overrides(rng: random.Random) -> tuple[Mutation, ...]:
    """One or two overrides more."""
    return tuple(Mutation(rng.choice(sorted(OVERRIDES)), rng.randrange(1 << 32)) for _ in range(rng.choice((1, 1, 2))))


def mutated(tree: dict[str, Any], changes: tuple[Mutation, ...]) -> Draft:
    """A tree, which is used up, after its changes: first of its structure and values, then of its text."""
    draft = Draft(tree)
    for stage in (TREE, OVERRIDES):
        for change in changes:
            if change.name in stage:
                stage[change.name](draft, random.Random(change.seed))
    draft.data = _written(draft.tree)
    for change in changes:
        if change.name in TEXT:
            TEXT[change.name](draft, random.Random(change.seed))
    return draft


def _written(tree: Any) -> bytes:
    """PyYAML goes down three calls a level, and a tree may have several hundred."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(20_000)
    try:
        return yaml.dump(tree, Dumper=_Dumper, sort_keys=False, allow_unicode=True).encode()
    finally:
        sys.setrecursionlimit(limit)


class _Dumper(yaml.SafeDumper):
    """Writes tuples, and text with halves of surrogate pairs, as a hostile file would."""


_Dumper.add_representer(tuple, yaml.SafeDumper.represent_list)

NUMBERS: tuple[Any, ...] = (
    -1, 0, 1, 2, 3, 7, -0.0, 0.5, 1e-320, 1e308, 1e31, 8e9, 1e40, math.inf, -math.inf, math.nan,
    255, 2**31 - 1, 2**31, 2**32, 2**63 - 1, 2**63, 2**64, 10**31, 10**40, 10**400, -(2**63),
)  # fmt: skip
TEXTS: tuple[str, ...] = (
    "", " ", "a", "é", "\u202e", "none", "null", "auto", "true", "yes", "1", "1e-6", "0x10", "inf", "nan", "???",
    "${seed}", "${nowhere}", "${", "${}", "${.}", "${..seed}", "${exp_name}${exp_name}", "${oc.env:HOME}",
    "${oc.env:NOPE}",
    "${oc.decode:'[1'}", "${oc.create:{a:1}}", "${now:%Y}", "${hydra:run.dir}", "${${seed}}", "$" * 40, "{}" * 20,
    "%s%n",
    "~nosuchuser", "~nosuchuser/x", "/", "..", "../../..", "/dev/null", "/dev/zero", "/proc/self/mem", "a/" * 200,
    "x" * 300,
    "y" * 5000, "a\0b", "\ud800", "\x1b[31m", "\n\n", "\t", "list(range(0,8))", "list(range(10**9))",
    "list(range(8,0))",
    "[" * 500, "(" * 300 + ")" * 300, "a.b:c", "os:system", ":", "*", "&", "!!x", "- a", "a: b", "#", "'", '"', "\\",
)  # fmt: skip


def _value(rng: random.Random) -> Any:
    choice = rng.random()
    if choice < 0.4:
        return rng.choice(NUMBERS)
    if choice < 0.7:
        return rng.choice(TEXTS)
    return rng.choice(
        (None, True, False, [], {}, [[]], [{}], [None], {"a": 1}, {1: 2}, {None: 1}, {True: []}, {"": ""}, [1, "a", {}],
         _nested([], 30), _nested({}, 30), list(range(200)), {f"k{i}": i for i in range(100)}, (1, 2), {"a.b": 1},
         {"enabled": "auto"}, [0], [0, 0], [-1], ["list(range(0,2))"], {"defaults": []}, {"_target_": "os.system"})
    )  # fmt: skip


def _nested(kind: Any, depth: int) -> Any:
    value: Any = kind
    for _ in range(depth):
        value = [value] if isinstance(kind, list) else {"a": value}
    return value


def places(node: Any, path: Path = (), seen: tuple[int, ...] = ()) -> Iterator[Path]:
    """Paths of everything in a tree, without going round its cycles."""
    if path:
        yield path
    if id(node) in seen or len(path) > 40:
        return
    children = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, child in children:
        yield from places(child, (*path, key), (*seen, id(node)))


def _at(tree: Any, path: Path) -> Any:
    for part in path:
        tree = tree[part]
    return tree


def _pick(draft: Draft, rng: random.Random) -> tuple[Any, Any]:
    """A container of the tree, and a key or position in it."""
    found = list(places(draft.tree))
    if not found:
        draft.tree["seed"] = 1
        found = [("seed",)]
    path = rng.choice(found)
    return _at(draft.tree, path[:-1]), path[-1]


def _replace_value(draft: Draft, rng: random.Random) -> None:
    node, key = _pick(draft, rng)
    node[key] = _value(rng)


def _replace_scalar(draft: Draft, rng: random.Random) -> None:
    """A scalar by one of another size, where the type often stays right."""
    found = [path for path in places(draft.tree) if isinstance(_at(draft.tree, path), int | float | str)]
    if found:
        path = rng.choice(found)
        old = _at(draft.tree, path)
        new = rng.choice(TEXTS if isinstance(old, str) and rng.random() < 0.7 else NUMBERS)
        _at(draft.tree, path[:-1])[path[-1]] = new


def _replace_scalars(draft: Draft, rng: random.Random) -> None:
    for _ in range(5):
        _replace_scalar(draft, rng)


def _remove(draft: Draft, rng: random.Random) -> None:
    node, key = _pick(draft, rng)
    del node[key]


def _move(draft: Draft, rng: random.Random) -> None:
    """A value under a key, or at a place, of another."""
    node, key = _pick(draft, rng)
    value = node[key]
    target, place = _pick(draft, rng)
    target[place] = value


def _rename(draft: Draft, rng: random.Random) -> None:
    node, key = _pick(draft, rng)
    if isinstance(node, dict):
        value = node.pop(key)
        text = str(key)
        odd: tuple[Any, ...] = (
            1, 1.5, True, None, "", " ", "a.b", "a=b", "\n", "x" * 300, "\ud800", "hydra", "defaults", "_self_", "~",
            "<<"
        )  # fmt: skip
        cut = rng.randrange(len(text) + 1)
        node[rng.choice((text[:cut] + text[cut + 1 :], text[:cut] + "x" + text[cut:], rng.choice(odd)))] = value


def _wrap(draft: Draft, rng: random.Random) -> None:
    node, key = _pick(draft, rng)
    node[key] = rng.choice(([node[key]], {"a": node[key]}, [[node[key]]], {key: node[key]}))


def _nest_deep(draft: Draft, rng: random.Random) -> None:
    node, key = _pick(draft, rng)
    node[key] = _nested(rng.choice(([], {})), rng.choice((60, 150, 300)))


def _cycle(draft: Draft, rng: random.Random) -> None:
    """A container inside itself: an alias of an anchor that is still open."""
    found = [path for path in places(draft.tree) if isinstance(_at(draft.tree, path), dict | list)]
    if found:
        path = rng.choice(found)
        node = _at(draft.tree, path)
        above = _at(draft.tree, path[: rng.randrange(len(path) + 1)])
        node.append(above) if isinstance(node, list) else node.update({"again": above})


def _hydra_words(draft: Draft, rng: random.Random) -> None:
    draft.tree[rng.choice(("defaults", "hydra"))] = rng.choice(
        (_value(rng), ["_self_"], ["nowhere"], [{"a": "b"}], [{"override hydra/launcher": "x"}], [{"a": ["b", None]}],
         [{"optional x": "y"}, "_self_"], ["../../../etc/passwd"], ["fuzz"], [["a"]], {"run": {"dir": 1}},
         {"searchpath": 3}, {"searchpath": ["file:///"]}, {"searchpath": ["nowhere://x"]}, {"searchpath": [None]},
         {"job": {"name": []}}, {"output_subdir": {}}, ["_self_", "_self_"], [{"a@b": "c"}], ["/a@_here_"])
    )  # fmt: skip


TREE: Mapping[str, Callable[[Draft, random.Random], None]] = {
    "replace_value": _replace_value,
    "replace_scalar": _replace_scalar,
    "replace_scalars": _replace_scalars,
    "remove": _remove,
    "move": _move,
    "rename": _rename,
    "wrap": _wrap,
    "nest_deep": _nest_deep,
    "cycle": _cycle,
    "hydra_words": _hydra_words,
}


# --- overrides


def _dotted(draft: Draft, rng: random.Random) -> str:
    found = list(places(draft.tree)) or [("seed",)]
    return ".".join(str(part) for part in rng.choice(found)).replace("\0", "")


def _override(draft: Draft, rng: random.Random) -> None:
    value = _value(rng)
    text = rng.choice((str(value)[:400], repr(value)[:400], rng.choice(TEXTS))) if value is not None else "null"
    draft.overrides.append(f"{rng.choice(('', '', '', '+', '++'))}{_dotted(draft, rng)}={text}".replace("\0", ""))


def _overrides(draft: Draft, rng: random.Random) -> None:
    for _ in range(3):
        _override(draft, rng)


def _delete_override(draft: Draft, rng: random.Random) -> None:
    draft.overrides.append(f"~{_dotted(draft, rng)}{rng.choice(('', '', 'x', '.x', '=1'))}")


def _odd_override(draft: Draft, rng: random.Random) -> None:
    draft.overrides.append(
        rng.choice(
            ("", "=", "a", "=1", "~", "+", "--x", "-x", "a.=1", ".a=1", "a..b=1", "." * 50 + "=1",
             "hydra.run.dir=x", "hydra=1", "defaults=[]", "defaults.0=x", "a=" + "[" * 400, "a={" * 50, "a=${", "a=${b",
             "seed=1,2,3", "seed=range(1,5)", "seed=glob(*)", "seed=int(1.5)", "seed='1", 'seed="', "seed=\\", "a=b=c",
             "seed=\ud800", "\ud800=1", "é=1", "seed=" + "9" * 5000, "seed=[1,2", "seed={a:1", "seed={a:1}", "+seed",
             "rewards=[]", "actor_train=1", "actor_train.x.y.z=1", "actor_train.training_args.0=1", "a[0]=1",
             "seed@x=1")
        )
    )  # fmt: skip


OVERRIDES: Mapping[str, Callable[[Draft, random.Random], None]] = {
    "override": _override,
    "override_more": _overrides,
    "delete_override": _delete_override,
    "odd_override": _odd_override,
}


# --- text and bytes


def _raw_value(draft: Draft, rng: random.Random) -> None:
    """What stands behind a colon becomes something only a person, or nobody, would write."""
    odd = (
        "1e400", "0x" + "f" * 5000, "9" * 5000, "!!binary aGk=", "!!binary '*'", "*nowhere", "&a [*a]", "&a {b: *a}",
        "{[}", "[",
        "!!python/object/apply:os.system [ls]", "!!python/object/apply:pathlib.Path [a]", "!!set {a, b}",
        "!!omap [a: 1]",
        "!!timestamp 2020-01-01", "2020-01-01", "1:30", "0o17", "08", "1_000", "+.inf", ".NaN", "~", "|", ">", "? a",
        "%",
        "@", "`", "!!int x", "!!float x", "!!bool x", "!!null x", "!!str", "!x y", "'", '"', '"\\x"', '"\\ud800"',
        "{a: 1, a: 2}",
        "{<<: 1}", "{<<: [1]}", "{<<: {seed: 1}}", "{? [a] : b}", "{? {a: b} : c}", "[" * 2000, "{a: " * 500,
        "- - - -", "=", "<<",
    )  # fmt: skip
    lines = draft.data.decode("latin-1").split("\n")
    found = [i for i, line in enumerate(lines) if re.match(r"\s*[\w-]+:", line)]
    if found:
        i = rng.choice(found)
        lines[i] = lines[i].partition(":")[0] + ": " + rng.choice(odd)
        draft.data = "\n".join(lines).encode("latin-1", errors="replace")


def _lines(draft: Draft, rng: random.Random) -> None:
    """A line away, twice, elsewhere, or indented otherwise."""
    lines = draft.data.split(b"\n")
    i = rng.randrange(len(lines))
    changes: tuple[Callable[[], object], ...] = (
        lambda: lines.pop(i),
        lambda: lines.insert(i, lines[i]),
        lambda: lines.insert(rng.randrange(len(lines)), lines.pop(i)),
        lambda: lines.__setitem__(i, b" " + lines[i]),
        lambda: lines.__setitem__(i, b"\t" + lines[i]),
        lambda: lines.__setitem__(i, lines[i].lstrip()),
        lambda: lines.insert(
            i, rng.choice((b"---", b"...", b"%YAML 9", b"- a", b"a", b": b", b"? ", b"\0", b"<<: *a"))
        ),
    )
    rng.choice(changes)()
    draft.data = b"\n".join(lines)


def _bytes(draft: Draft, rng: random.Random) -> None:
    data = bytearray(draft.data)
    for _ in range(rng.choice((1, 1, 3, 30))):
        if data:
            data[rng.randrange(len(data))] = rng.randrange(256)
    draft.data = bytes(data)


def _printable(draft: Draft, rng: random.Random) -> None:
    data = bytearray(draft.data)
    for _ in range(rng.choice((1, 1, 2, 5))):
        data.insert(rng.randrange(len(data) + 1), rng.choice(b"{}[]:,-&*!|>'\"%@`#?$~ \n\t0"))
    draft.data = bytes(data)


def _whole_file(draft: Draft, rng: random.Random) -> None:
    data = draft.data
    bomb = b"\n".join(
        [b"a0: &a0 [1,1,1,1,1,1,1,1,1]"]
        + [b"a%d: &a%d [%s]" % (i, i, b",".join([b"*a%d" % (i - 1)] * 9)) for i in range(1, 9)]
    )
    chain = b"\n".join([b"b0: x"] + [b"b%d: ${b%d}${b%d}" % (i, i - 1, i - 1) for i in range(1, 40)])
    draft.data = rng.choice(
        (b"", b"\n", b"# only a comment", b"a", b"[]", b"{}", b"1", b"null", b"---\n---\n", b"\0" * 100, b"\xff\xfe",
         b"\xef\xbb\xbf" + data, data.decode(errors="replace").encode("utf-16"), data[: rng.randrange(len(data) + 1)],
         data + b"\n" + data, data + b"\n---\n" + data, data.replace(b"\n", b"\r\n"), data.replace(b"\n", b"\r"),
         data.replace(b" ", b"\t"), data.replace(b"'", b'"'), data + b"\n" + bomb, data + b"\n" + chain,
         data + b"\n...\nx",
         rng.randbytes(300), data + b"\n" + b"x" * 100_000, data + b"\n" + b"[" * 20_000, data + b"\n\xed\xa0\x80: 1")
    )  # fmt: skip


TEXT: Mapping[str, Callable[[Draft, random.Random], None]] = {
    "raw_value": _raw_value,
    "lines": _lines,
    "bytes": _bytes,
    "printable": _printable,
    "whole_file": _whole_file,
}
