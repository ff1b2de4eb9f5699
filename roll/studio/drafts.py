"""What a new configuration begins from: the examples, and configurations of other systems."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

import roll
from roll.errors import ConfigError
from roll.importers.command import imported_from
from roll.importers.given import YAML_ENDINGS, read
from roll.importers.report import report, yaml_text
from roll.run.kind import kind_of
from roll.run.spec import PIPELINES
from roll.studio.yaml_edit import tree_of

_EXAMPLES = Path(roll.__path__[0]).parent / "examples"


@dataclass(frozen=True)
class Draft:
    name: str
    kind: str
    text: str


def examples() -> list[Draft]:
    """Drafts from the examples, by kind and name; none if the package is installed without its checkout."""
    found = []
    for path in sorted(_EXAMPLES.glob("*/*.yaml")):
        text = path.read_text(encoding="utf-8")
        if path.parent.name != "config":
            found.append(Draft(f"{path.parent.name}/{path.stem}", kind_of_text(text) or "stages", text))
    order = [*PIPELINES, "stages"]
    return sorted(found, key=lambda draft: (order.index(draft.kind), "tiny" not in draft.name, draft.name))


def kind_of_text(text: str) -> str | None:
    """None where nothing tells, as of stages, and of a text that is no YAML."""
    try:
        tree = tree_of(text)
        return None if "stages" in tree else kind_of(tree).name
    except ConfigError:
        return None


def imported(name: str, content: bytes) -> tuple[str, str]:
    """The YAML and the report of an import of a YAML or a script of another system. Raises ConfigError for what cannot
    be imported."""
    with tempfile.TemporaryDirectory(prefix="roll-studio-") as folder:
        ending = Path(name).suffix
        file = Path(folder) / f"given{ending if ending in YAML_ENDINGS else '.sh'}"
        file.write_bytes(content)
        found = imported_from(read(file), source=file)
    shown = Path(name).name
    return yaml_text(found, shown), report(found, shown, "imported.yaml")
