"""`roll import`: a configuration of verl, Trinity-RFT or an older ROLL becomes a YAML of here, with a report."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from roll.configs.load.loader import compose_tree, resolve_tree, without_unset
from roll.errors import ConfigError
from roll.importers.convert import Imported, SourceKeys, read
from roll.importers.old_roll import convert_roll, is_roll
from roll.importers.options import SYSTEMS, argument_parser
from roll.importers.page import changes, command, open_title, report, summary, to_check
from roll.importers.rows import Change
from roll.importers.script import COUNTED, Command
from roll.importers.trinity.tables import import_trinity, is_trinity
from roll.importers.verl.combined_keys import OF_MACHINES, TRACKER_VARIABLES
from roll.importers.verl.tables import import_verl, is_verl
from roll.run.kind import kind_of
from roll.run.stages.entries import STAGES
from roll.run.stages.planned import plan_stages
from roll.run.start.load import check
from roll.utils.files import write_whole
from roll.utils.logging import say
from roll.utils.secrets import mask


def plan_problems(path: Path) -> tuple[str, ...]:
    """Return what stands against the settings themselves, and fragments that are not at hand. Files of the run, logins
    and the user's code are not looked at."""
    try:
        raw, _ = without_unset(compose_tree(path.parent.resolve(), path.stem, ()))
        if STAGES in raw.tree:
            plan_stages(raw, (), None)
        else:
            spec = kind_of(raw.tree)
            check(spec, resolve_tree(raw, spec.config_class()))
    except ConfigError as error:
        return error.problems
    return ()


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


OK, ANOTHER_RUN = 0, 3


def run(argv: Sequence[str]) -> int:
    """Does an import and says what was done; 3 where the YAML is not the run that its author meant, unless --lossy
    takes that. Raises ConfigError for what cannot be imported."""
    options, words = argument_parser().parse_known_args(argv)
    if unknown := [word for word in words if word.startswith("-") and not os.path.isfile(word)]:
        raise ConfigError(f"{', '.join(unknown)}: unknown option; see roll import --help.")
    files = [word for word in words if not ("=" in word or word.startswith("~")) or os.path.isfile(word)]
    overrides = [word for word in words if word not in files]
    if len(files) > 1:
        raise ConfigError(f"one file at a time: {' and '.join(files)} are {len(files)}.")
    if not files and not overrides:
        raise ConfigError("nothing to import: name a YAML or a script, or give key=value arguments.")
    source = Path(files[0]) if files else None
    target = Path(options.out or f"{source.stem if source else 'imported'}.roll.yaml")
    if target.suffix != ".yaml":  # the only ending that Hydra reads
        raise ConfigError(f"--out {target}: a configuration is a file that ends in .yaml.")
    if options.gpus is not None and options.gpus < 1:
        raise ConfigError(f"--gpus {options.gpus}: a machine has at least 1.")
    original = read(source, overrides, options.training, options.gpus)
    imported = imported_from(original, options.system, source, options.training is not None, options.version)
    if options.gpus is not None and COUNTED.format(options.gpus) not in imported.notes:
        imported = replace(imported, notes=(*imported.notes, Change(_UNREAD.format(f"--gpus {options.gpus}"))))
    imported, lines = _write(imported, source, target, options.force)
    for line in lines:
        say(line)
    return OK if imported.is_as_meant or options.lossy else ANOTHER_RUN


def imported_from(
    original: SourceKeys,
    system: str | None = None,
    source: Path | None = None,
    is_chosen: bool = False,
    version: str | None = None,
) -> Imported:
    """The import of what was read. `system` None: what the keys say; `is_chosen`: of several trainings, this one is
    asked for. `version`: verl's release."""
    kind = system or system_of(original)
    notes = [*_notes(original, is_chosen), *original.notes]
    if version is not None and kind != "verl":
        raise ConfigError(f"--version names a release of verl, and this is of {kind}.")
    if kind == "verl":
        made = import_verl(original, notes, source, version)
    else:
        made = import_trinity(original, notes, source) if kind == "trinity" else convert_roll(original, source)
    words = {word.lstrip("+~").partition("=")[0] for word in original.overrides}
    of_file = original.command is not None
    others = [entry.key for entry in made.entries if (entry.key in words) is not of_file and entry.key[:1] not in "-$"]
    return replace(made, origins=dict.fromkeys(others, "own file" if of_file else "command"))


def system_of(original: SourceKeys) -> str:
    """Return the name of the system that the keys belong to. Raises ConfigError where nothing tells."""
    for name, is_it in (("verl", is_verl), ("trinity", is_trinity), ("roll", is_roll)):
        if is_it(original.tree):
            return name
    if original.command is not None:
        return "verl"
    raise ConfigError(f"the keys do not tell which system this configuration is for: give --from {', '.join(SYSTEMS)}.")


def _notes(original: SourceKeys, is_chosen: bool) -> list[str]:
    command = original.command
    taken = [
        f"~{key} removes one of their defaults: check whether a setting here replaces it." for key in original.taken
    ]
    taken += [f"{word} chooses one of their files; the importer knows its defaults." for word in original.groups]
    if command is None:
        return taken
    words = [word for word in (*command.flags, *command.others) if word]
    given = {key for key, _ in original.keys}
    stray = [word for word in command.stray if word.lstrip("+~").partition("=")[0] not in given]
    return [
        f"{_COMMAND}{' '.join(command.program)}, line {command.line}.",
        *([Change(_STRAY.format(" ".join(stray)))] if stray else []),
        *(Change(_UNREAD.format(name)) for name in command.unread if name not in _OF_PROGRAMS),
        *([f"Arguments without a key, which are ignored: {' '.join(words)}"] if words else []),
        *_trainings(command, is_chosen),
        *command.notes,
        *taken,
    ]


def _trainings(command: Command, is_chosen: bool) -> Iterator[str]:
    """Yield notes about a script with several trainings: each is a run of its own."""
    number = len(command.trainings)
    if number > 1:
        text = (
            f"The script trains {number} times, and this is number {command.chosen + 1}. --training N imports another."
        )
        yield text if is_chosen else Change(text)
    for i, difference in enumerate(command.trainings):
        if i != command.chosen:
            yield f"{_TRAINING}{i + 1}: {difference or 'fewer keys'}"


_OF_PROGRAMS = {*TRACKER_VARIABLES, *OF_MACHINES}
"""Variables that the program reads by itself, not the script."""
_UNREAD = (
    "{0} is given, and changes nothing: the script does not read it, or sets it before it does. Give the key that is "
    "meant after the file."
)
_COMMAND, _TRAINING = "The command: ", "--training "
_STRAY = (
    "{0} begins a line of its own, and the line before ends without a backslash, or is a comment: to the shell it is "
    "another command, and counts for nothing. Give it after the file if it belongs to it."
)


def _write(imported: Imported, source: Path | None, target: Path, force: bool) -> tuple[Imported, list[str]]:
    """Write the YAML and its page; return the import with what a plan says of the YAML, and lines to show."""
    page = target.with_name(f"{target.stem}.report.md")
    if not force and (there := [path for path in (target, page) if path.exists()]):
        raise ConfigError(
            f"{' and '.join(map(str, there))} {'exist' if there[1:] else 'exists'} already; --force writes over it."
        )
    name = source.name if source else "the command line"
    try:
        write_whole(target, yaml_text(imported, name))
        if not imported.unresolved:  # what is missing would be all that a plan says
            refused = [Change(f"`roll plan` refuses it: {text}") for text in plan_problems(target)]
            imported = replace(imported, notes=(*imported.notes, *refused))
        write_whole(page, report(imported, name, str(target)))
    except OSError as error:
        raise ConfigError(f"{target} cannot be written: {error.strerror or error}.") from None
    return imported, [
        f"{summary(imported)}.",
        *_listed(f"{open_title(name)}; give these after the file, as key=value:", imported.unresolved),
        *_listed("Other trainings of the script:", [note for note in imported.notes if note.startswith(_TRAINING)]),
        *_listed("To check, for the checkout has it on by default:", to_check(imported)),
        *_listed("Not the run that its author meant:", changes(imported)),
        f"Written: {target}, and {page} with every key. Look at the plan: {command(str(target))}",
        *([] if imported.is_as_meant else [_ANOTHER]),
    ]


_ANOTHER = "This YAML is not the run that its author meant: see above. --lossy accepts it."


def _listed(title: str, lines: Sequence[str]) -> list[str]:
    return [title, *(f"  {mask(line)}" for line in lines)] if lines else []
