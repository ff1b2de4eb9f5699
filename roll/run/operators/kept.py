"""What operators chose, kept by content: files, settings and code say under which name, so that nothing stale is ever
read."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import uuid
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from roll.configs.sections.data import DataArgs, OperatorConfig
from roll.configs.sections.model import ModelArgs
from roll.configs.sections.operators import OPERATORS, operator_of
from roll.datasets.loader import DataFile, DataSource
from roll.errors import describe
from roll.run.operators.row import Chosen, as_json, from_json

logger = logging.getLogger(__name__)

_NO_PART = {
    "operators_cache", "file_name", "shuffle", "domain_interleave_probs", "template", "truncation", "system_prompt",
}  # fmt: skip
"""Of data_args, what operators never see."""
_TOKENIZER_ENDINGS = (".json", ".txt", ".model", ".tiktoken")
_CHUNK_BYTES = 1 << 20


class KeptChoices:
    """A folder with one file for each content. Files are written whole or not at all, so that processes may share it;
    one that cannot be read, or that something has changed, is as good as none."""

    def __init__(self, folder: str):
        self._folder = Path(folder).expanduser() if folder else None

    def read(self, name: str) -> Chosen | None:
        if self._folder is None:
            return None
        path = self._folder / f"{name}.json"
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            if found["digest"] != _digest_of(found["chosen"]):
                raise ValueError("its digest does not match")
            return from_json(found["chosen"])
        except FileNotFoundError:
            return None
        except (OSError, ValueError, LookupError, TypeError) as error:
            logger.warning("%s is computed again, since it cannot be read: %s", path, describe(error))
            return None

    def write(self, name: str, chosen: Chosen) -> None:
        """What the disk refuses is told, and the run goes on."""
        if self._folder is None:
            return
        value = as_json(chosen)
        text = json.dumps({"digest": _digest_of(value), "chosen": value})
        unfinished = self._folder / f".{name}.{uuid.uuid4().hex}"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            unfinished.write_text(text, encoding="utf-8")
            os.replace(unfinished, self._folder / f"{name}.json")
        except OSError as error:
            with suppress(OSError):
                unfinished.unlink()
            logger.warning("the choice of the operators could not be saved in %s: %s", self._folder, error)


def _digest_of(value: Mapping[str, Any]) -> str:
    return hashlib.blake2b(json.dumps(value).encode(), digest_size=16).hexdigest()


def name_of(
    args: DataArgs,
    sources: Sequence[DataSource],
    evaluation: Mapping[str, tuple[DataArgs, Sequence[DataSource]]],
    kind: str,
    tokenizer: ModelArgs,
) -> str:
    """The name of what `args.operators` choose among these rows. `kind`: how the run reads a row. A tokenizer counts
    where tokens are; that of a directory by its files, that of a hub id by its name."""
    digest = hashlib.blake2b(digest_size=20)

    def add(*parts: object) -> None:
        digest.update(json.dumps([str(part) for part in parts]).encode())

    add(kind, *_code(args.operators))
    add(args.model_dump_json(exclude=_NO_PART))
    add(*map(_content, sources))
    compares = any((row := operator_of(entry.name)) is not None and row.compares for entry in args.operators)
    for key, (other, found) in evaluation.items() if compares else ():
        add(key, other.model_dump_json(exclude=_NO_PART), *map(_content, found))
    for entry in args.operators:
        known = operator_of(entry.name)
        add(*([known.args.model_validate(entry.args).model_dump_json()] if known else []), *_files_of(entry))
    if any(entry.args.get("unit") == "tokens" for entry in args.operators):
        place = tokenizer.tokenizer_path or tokenizer.model_name_or_path or ""
        there = sorted(Path(place).iterdir()) if place and Path(place).is_dir() else []
        files = [path for path in there if path.suffix in _TOKENIZER_ENDINGS and path.is_file()]
        add("tokenizer", *((f"{path.name} {_content_of_file(path)}" for path in files) if files else (place,)))
    return digest.hexdigest()


def _content(source: DataSource) -> str:
    """Digest of a source: of a file's bytes, or of the rows of anything else. Raises ConfigError if they cannot be
    read."""
    if isinstance(source, DataFile):
        return f"{source.path.name} {source.format} {_content_of_file(source.path)}"
    digest = hashlib.blake2b(digest_size=20)
    for row in source.rows():
        digest.update(repr((row.place, sorted(row.values.items()))).encode(errors="surrogatepass"))
    return f"{source.name} {digest.hexdigest()}"


def _content_of_file(path: Path) -> str:
    digest = hashlib.blake2b(digest_size=20)
    try:
        with path.open("rb") as stream:
            while chunk := stream.read(_CHUNK_BYTES):
                digest.update(chunk)
    except OSError:  # whoever reads it next says so
        return "not there"
    return digest.hexdigest()


def _files_of(entry: OperatorConfig) -> Iterable[str]:
    """The files that its arguments name: their names, which say what is read of a folder, and contents."""
    row = operator_of(entry.name)
    for argument in row.files if row is not None else ():
        place = Path(os.path.expanduser(str(entry.args.get(argument) or "")))
        for path in sorted(place.glob("*")) if place.is_dir() else [place]:
            yield f"{path.name} {_content_of_file(path)}"


def _code(entries: Sequence[OperatorConfig]) -> Iterable[str]:
    """Digests of the code behind the operators: of this package, of the code that reads rows, and of the modules of
    user-defined functions (but not of their imports)."""
    home = Path(__file__).parent
    for folder in (home, home.parent / "rows", home.parents[1] / "datasets"):
        yield from map(_content_of_file, sorted(folder.glob("*.py")))
    named = [entry.name for entry in entries if entry.name not in OPERATORS]
    for name in [*named, *(str(entry.args["scorer"]) for entry in entries if entry.args.get("scorer"))]:
        try:
            spec = find_spec(name.partition(":")[0])
        except Exception:  # of a package of the user's; whoever runs the function says so
            spec = None
        yield name if spec is None or spec.origin is None else _content_of_file(Path(spec.origin))
