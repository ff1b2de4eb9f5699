"""Reading one YAML file of a configuration, with one kind of error for whatever is wrong in it."""

from pathlib import Path
from typing import Any

import yaml
from omegaconf._utils import get_yaml_loader  # Hydra's dialect: 1e-6 is a number, a key stands once

from roll.errors import ConfigError
from roll.utils.files import path_info
from roll.utils.text import show

PACKAGED_FRAGMENTS = Path(__file__).parents[1] / "fragments" / "config"
CHECKOUT_FRAGMENTS = Path(__file__).parents[3] / "examples" / "config"
_TAG = "tag:yaml.org,2002:"
_PLAIN = frozenset(_TAG + name for name in ("str", "int", "float", "bool", "null", "seq", "map", "merge", "value"))


def fragments_dir() -> Path:
    """Folder of the shipped fragments, in an installed package or in a source checkout. The folder is named `config`,
    since Hydra resolves `../config/x` against it."""
    return PACKAGED_FRAGMENTS if PACKAGED_FRAGMENTS.is_dir() else CHECKOUT_FRAGMENTS


def read_yaml(path: Path, may_be_empty: bool = False) -> dict[str, Any]:
    """The mapping in a file; with `may_be_empty` none is an empty one. Raises ConfigError with file and place for what
    is no YAML, or none of a configuration."""
    status = path_info(path)
    if not status.is_file:
        raise ConfigError(f"{status.why}, not a file." if status.exists else f"{status.why}.")
    try:
        content = _content(path.read_bytes().decode("utf-8-sig"))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror or error}.") from None
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
    """Takes plain values and keys alone; a value that cannot be built is an error of YAML, too."""

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node:
        node = super().compose_node(parent, index)
        if isinstance(node, yaml.ScalarNode) and (reason := unfit(node.value)):
            raise yaml.MarkedYAMLError(None, None, f"{ascii(node.value)[:80]} {reason}", node.start_mark)
        if node.tag not in _PLAIN:
            raise yaml.MarkedYAMLError(None, None, f"{node.tag} is not a type of a configuration", node.start_mark)
        if isinstance(node, yaml.MappingNode):
            for key, _ in node.value:
                _check_key(key, is_top=parent is None)
        return node

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except yaml.YAMLError:
            raise
        except Exception as error:  # `!!int x`
            raise yaml.MarkedYAMLError(None, None, f"{show(node.value)}: {error}", node.start_mark) from None


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
