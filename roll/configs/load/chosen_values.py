"""Values that roll chooses for keys that a YAML leaves out: by the machine, the model and the size of a step."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from roll.configs.base import join
from roll.utils.text import short


@dataclass(frozen=True)
class Machine:
    """Facts about the machine that choices depend on: the GPUs that this process sees, the memory of the smallest of
    them in bytes (None: not known), which optional packages are installed, whose GPUs they are (a value of the key
    `platform`), and the cores that workers without GPUs share, at most OMP_NUM_THREADS of the shell."""

    num_gpus: int = 0
    gpu_bytes: float | None = None
    packages: frozenset[str] = frozenset()
    platform: str = "cuda"
    num_cores: int = 1


@dataclass(frozen=True)
class Chosen:
    """One value and why it is that. `rolls`: ROLL's own default, where it is another.

    Example: Chosen("actor_train.training_args.learning_rate", 1e-6, "all weights are trained", rolls=5e-5)
    """

    key: str
    value: Any
    reason: str
    rolls: Any = None
    shown: str = ""
    """The value in a few words, where it is long."""

    @property
    def text(self) -> str:
        """Example: "1e-6, ROLL's default is 5e-5"."""
        other = "" if self.rolls is None else f", ROLL's default is {short(self.rolls)}"
        return f"{self.shown or short(self.value)}{other}"

    @property
    def described(self) -> str:
        """The same with the reason."""
        return f"{self.text} ({self.reason})"


def with_chosen(tree: Mapping[str, Any], chosen: Iterable[Chosen]) -> dict[str, Any]:
    """The tree with these values in it. The tree that is given does not change."""
    made = dict(tree)
    for choice in chosen:
        node, rest = made, choice.key
        while "." in rest:
            name = next((key for key in node if rest.startswith(f"{key}.")), rest.partition(".")[0])
            inner, rest = node.get(name), rest[len(name) + 1 :]
            node[name] = dict(inner) if isinstance(inner, Mapping) else {}
            node = node[name]
        node[rest] = choice.value
    return made


# Which keys a YAML says itself, so that what is left to roll can be told from it.

KeysInYaml = frozenset[str]
"""Dotted paths of the keys that a tree has, those of sections included."""


def keys_in_yaml(tree: Mapping[str, Any]) -> KeysInYaml:
    """The keys of a raw tree, before anything is filled in. `key: null` says nothing.

    Example: {"seed": 1, "critic": {"name": "c"}} gives seed, critic and critic.name.
    """
    return frozenset(_paths(tree, ""))


def _paths(tree: Mapping[str, Any], at: str) -> Iterator[str]:
    for key, value in tree.items():
        if value is None:
            continue
        path = join(at, key)
        yield path
        if isinstance(value, Mapping):
            yield from _paths(value, path)


def says_any(user_keys: Collection[str], *keys: str) -> bool:
    """True if the YAML says one of these keys."""
    return any(key in user_keys for key in keys)
