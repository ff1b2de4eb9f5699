"""Reading one YAML file of a configuration: within limits, and with one kind of error for whatever is wrong in it."""

from pathlib import Path
from typing import Any

import yaml
from omegaconf._utils import get_yaml_loader  # Hydra's dialect: 1e-6 is a number, a key stands once

from roll.errors import ConfigError
from roll.utils.files import path_info
from roll.utils.text import show

MAX_BYTES = 1 << 20
MAX_NODES = 20_000  # aliases counted as what they stand for: Hydra copies them
MAX_DEPTH = 50
MAX_BITS = 4096  # of a whole number

_TAG = "tag:yaml.org,2002:"
_PLAIN = frozenset(_TAG + name for name in ("str", "int", "float", "bool", "null", "seq", "map", "merge", "value"))


def read_yaml(path: Path, may_be_empty: bool = False) -> dict[str, Any]:
    """The mapping in a file; with `may_be_empty` none is an empty one. Raises ConfigError with file and place for what
    is no YAML, or none of a configuration."""
    status = path_info(path)
    if not status.is_file:
        raise ConfigError(f"{status.why}, not a file." if status.exists else f"{status.why}.")
    try:
        with path.open("rb") as stream:
            data = stream.read(MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror or error}.") from None
    if len(data) > MAX_BYTES:
        raise ConfigError(f"{path} is larger than {MAX_BYTES >> 20} MiB: that is not a configuration.")
    try:
        content = _content(data.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not valid YAML: byte {error.start} is not UTF-8 ({error.reason}).") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not valid YAML: {_error_text(error)}.") from None
    if content is None and may_be_empty:
        return {}
    if not isinstance(content, dict):
        raise ConfigError(f"{path} must hold a mapping of keys to values, not {show(content)}.")
    return content


def _content(text: str) -> Any:
    loader = _Loader(text)
    try:
        return loader.get_single_data()
    finally:
        loader.dispose()


def _error_text(error: yaml.YAMLError) -> str:
    if not isinstance(error, yaml.MarkedYAMLError):
        return " ".join(str(error).split())
    mark = error.problem_mark or error.context_mark
    place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark is not None else ""
    return place + " ".join(", ".join(filter(None, (error.problem, error.context))).split())


class _Loader(get_yaml_loader()):
    """Composes within the limits; a value that cannot be built is an error of YAML, too."""

    def __init__(self, text: str):
        super().__init__(text)
        self._depth = 0
        self._open: list[str] = []  # anchors whose node is not complete
        self._sizes: dict[int, int] = {}  # nodes below each node, itself included

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node:
        event = self.peek_event()
        is_alias = isinstance(event, yaml.AliasEvent)
        if is_alias and event.anchor in self._open:
            raise yaml.MarkedYAMLError(
                None, None, f"*{event.anchor} is inside the value that it names", event.start_mark
            )
        if self._depth >= MAX_DEPTH:
            raise yaml.MarkedYAMLError(None, None, f"nested deeper than {MAX_DEPTH} levels", event.start_mark)
        self._depth += 1
        if event.anchor and not is_alias:
            self._open.append(event.anchor)
        node = super().compose_node(parent, index)
        if event.anchor and not is_alias:
            self._open.pop()
        self._depth -= 1
        if not is_alias:
            self._check(node)
        return node

    def _check(self, node: yaml.Node) -> None:
        children = [child for item in node.value for child in (item if isinstance(item, tuple) else (item,))]
        size = 1
        if isinstance(node, yaml.ScalarNode):
            _check_text(node)
        else:
            size += sum(self._sizes[id(child)] for child in children)
        if size > MAX_NODES:
            raise yaml.MarkedYAMLError(
                None, None, f"more than {MAX_NODES} values, aliases written out", node.start_mark
            )
        if node.tag not in _PLAIN:
            raise yaml.MarkedYAMLError(None, None, f"{node.tag} is not a type of a configuration", node.start_mark)
        if isinstance(node, yaml.MappingNode):
            for key, _ in node.value:
                _check_key(key, is_top=self._depth == 0)
        self._sizes[id(node)] = size

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            value = super().construct_object(node, deep)
        except yaml.YAMLError:
            raise
        except Exception as error:  # `!!int x`, a number of 5000 digits
            raise yaml.MarkedYAMLError(None, None, f"{show(node.value)}: {error}", node.start_mark) from None
        if type(value) is int and value.bit_length() > MAX_BITS:
            raise yaml.MarkedYAMLError(None, None, f"a number of {value.bit_length()} bits", node.start_mark)
        return value


def _check_text(node: yaml.ScalarNode) -> None:
    reason = unfit(node.value)
    if reason:
        raise yaml.MarkedYAMLError(None, None, f"{ascii(node.value)[:80]} {reason}", node.start_mark)


def _check_key(key: yaml.Node, is_top: bool) -> None:
    kind = key.tag.removeprefix(_TAG)
    if kind in ("str", "merge") or (kind == "int" and not is_top):
        return
    if not isinstance(key, yaml.ScalarNode):
        raise yaml.MarkedYAMLError(None, None, "a key must be text", key.start_mark)
    shown = show(key.value) if key.value else "an empty one"
    raise yaml.MarkedYAMLError(
        None, None, f"a key must be text, and {shown} reads as {kind}; put quotes around it", key.start_mark
    )


def unfit(text: str) -> str | None:
    """Why a text cannot be a setting: nothing could write it down, or open it. None if it can."""
    if "\0" in text:
        return "holds a NUL character"
    if not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text):
        return "holds half of a surrogate pair, which UTF-8 cannot encode"
    return None
