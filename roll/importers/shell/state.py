"""State while a shell script is read: variables, arrays, arguments, and how much has been produced."""

from __future__ import annotations

from dataclasses import dataclass, field

from roll.importers.shell.quoted_parts import Damaged
from roll.importers.shell.syntax_tree import Steps

_MOST, _MOST_STEPS = 4 << 20, 5000
_OF_FILE = ("0", "BASH_SOURCE")
_WORD = 64  # bytes of a word beside its characters


@dataclass
class State:
    variables: dict[str, str] = field(default_factory=dict)
    arrays: dict[str, list[str]] = field(default_factory=dict)
    tables: dict[str, dict[str, str]] = field(default_factory=dict)
    """Arrays whose entries have names: `declare -A`."""
    functions: dict[str, Steps] = field(default_factory=dict)
    arguments: list[str] | None = None
    """Arguments of a function; None of the script, which gets those of whoever runs it."""
    script: str = ""
    """Path of the script's file, which `$0` and `BASH_SOURCE` name; empty where only its text is known."""
    exported: set[str] = field(default_factory=set)
    """Names of variables that programs of the script get."""
    exports_all: bool = False
    """Whether every variable that is set from here on is exported: `set -a`."""
    notes: list[str] = field(default_factory=list)
    made: int = 0
    steps: int = 0

    def spend(self, characters: int, num_words: int = 0) -> None:
        """Counts what expansions make. Raises Damaged for more than 4 MiB."""
        self.made += characters + _WORD * num_words + 1
        if self.made > _MOST:
            raise Damaged(f"its words grow beyond {_MOST >> 20} MiB, too much for a script that starts a run")

    def step(self) -> None:
        self.steps += 1
        if self.steps > _MOST_STEPS:
            raise Damaged(f"more than {_MOST_STEPS} commands would run, too many for a script that starts a run")

    def assign(self, name: str, value: str) -> None:
        self.spend(len(value))
        if self.exports_all:
            self.exported.add(name)
        self.variables[name] = value
        self.arrays.pop(name, None)

    def assign_array(self, name: str, values: list[str]) -> None:
        self.spend(sum(map(len, values)), len(values))
        self.arrays[name] = values
        self.variables.pop(name, None)

    def leave_open(self, name: str) -> None:
        """Notes that a variable has no known value: only a run of the script could tell."""
        if name not in self.arrays:
            self.variables.setdefault(name, opened(name))

    def known(self, name: str) -> str | None:
        """The value of a variable or an argument; None where nothing sets it."""
        if self.script and name in _OF_FILE:
            return self.script
        if name.isdecimal():
            place = int(name) - 1 if len(name) < 6 else -1
            arguments = self.arguments or []
            return (
                arguments[place]
                if 0 <= place < len(arguments)
                else ("" if self.arguments is not None and place >= 0 else None)
            )
        if name in self.arrays:
            return next(iter(self.arrays[name]), "")
        if name in self.tables:
            return self.tables[name].get("0", "")
        return self.variables.get(name)

    def value(self, name: str) -> str:
        """The same; what the script does not set is of the environment, if it is named like its variables."""
        value = self.known(name)
        if value is not None:
            return value
        if name.isdecimal() or name in ("#", "?", "$", "!", "-"):
            return opened(name)
        if name.isupper():
            return f"${{oc.env:{name}}}"
        self.note(f"${name} is not set in the script and treated as empty.")
        return ""

    @property
    def separators(self) -> str:
        """Signs between words: blanks, unless the script sets IFS."""
        value = self.variables.get("IFS")
        return " \t\n" if value is None or "$" in value else value

    def environment(self) -> dict[str, str]:
        """Return the exported variables that the script sets."""
        self.spend(0, len(self.exported))
        return {name: self.variables[name] for name in sorted(self.exported) if name in self.variables}

    def entries(self, name: str) -> list[str]:
        """Return the entries of an array; a variable counts as one entry, and one that is not set as none."""
        if name in ("@", "*"):
            return list(self.arguments or [])
        if name in self.arrays:
            return self.arrays[name]
        if name in self.tables:
            return list(self.tables[name].values())
        value = self.known(name)
        return [] if value is None else [value]

    def note(self, text: str) -> None:
        if text not in self.notes and len(self.notes) < 50:
            self.notes.append(text)


def opened(name: str) -> str:
    """The text of a value that only a run of the script would tell."""
    return f"${{{name}}}"
