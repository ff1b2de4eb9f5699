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


def fragments_dir() -> Path:
    """Folder of the shipped fragments, in an installed package or in a source checkout. The folder is named `config`,
    since Hydra resolves `../config/x` against it."""
    return PACKAGED_FRAGMENTS if PACKAGED_FRAGMENTS.is_dir() else CHECKOUT_FRAGMENTS


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping in a file. Raises ConfigError with file and place for what is no YAML, or none of a configuration."""
    status = path_info(path)
    if not status.is_file:
        raise ConfigError(f"{status.why}, not a file." if status.exists else f"{status.why}.")
    try:
        loader = get_yaml_loader()(path.read_bytes().decode("utf-8-sig"))
        node = loader.get_single_node()
        content = None if node is None else loader.construct_document(node)
        if isinstance(node, yaml.MappingNode):
            _check_keys(node)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror or error}.") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not valid YAML: byte {error.start} is not UTF-8 ({error.reason}).") from None
    except (yaml.YAMLError, ValueError) as error:  # also `!!int x`
        raise ConfigError(f"{path} is not valid YAML: {_error_text(error)}.") from None
    if not isinstance(content, dict):
        raise ConfigError(f"{path} must hold a mapping of keys to values, not {show(content)}.")
    return content


def _check_keys(node: yaml.MappingNode) -> None:
    """Raises MarkedYAMLError for a key that is no text, which Hydra would turn into another: `on` into `True`."""
    for key, _ in node.value:
        kind = key.tag.rpartition(":")[2]
        if kind not in ("str", "value"):
            problem = f"a key must be text, and {show(key.value)} reads as {kind}; put quotes around it"
            raise yaml.MarkedYAMLError(None, None, problem, key.start_mark)


def _error_text(error: Exception) -> str:
    if not isinstance(error, yaml.MarkedYAMLError):
        return " ".join(str(error).split())
    mark = error.problem_mark or error.context_mark
    place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark is not None else ""
    return place + " ".join(", ".join(filter(None, (error.problem, error.context))).split())
