"""The driver's own part of a checkpoint, as JSON."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from roll.errors import ConfigError
from roll.run.saving.manifest import reason
from roll.utils.files import read_object
from roll.utils.secrets import redact

_STATE = "driver_state.json"


class DriverState(BaseModel):
    """`run` is what a pipeline saves: data cursor, coefficients, statistics. `config` is the configuration it was
    saved under, with secrets as ***."""

    model_config = ConfigDict(frozen=True, strict=True)

    steps_done: int = Field(ge=0)
    run: dict[str, Any]
    config: dict[str, Any] = {}


def write_state(directory: Path, state: DriverState) -> Path:
    """Writes the state as JSON. Numpy numbers and arrays become numbers and lists, `config` is redacted, and anything
    else that JSON cannot hold raises TypeError. Nothing is ever pickled."""
    value = {**vars(state), "config": redact(state.config)}
    path = directory / _STATE
    path.write_text(json.dumps(value, indent=1, default=_from_numpy))
    return path


def read_state(directory: Path) -> DriverState:
    """Read the state that write_state wrote; tuples have become lists and number keys texts, as JSON has it. Raises
    ConfigError if it is missing or damaged."""
    try:
        return DriverState.model_validate(read_object(directory / _STATE))
    except FileNotFoundError:
        raise ConfigError(f"{directory} has no {_STATE}: it holds no driver state to resume from") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{directory / _STATE} cannot be read, the checkpoint is damaged: {reason(error)}") from error


def _from_numpy(value: Any) -> Any:
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    raise TypeError(f"a checkpoint's state must fit into JSON: got {type(value).__name__} {value!r:.80}")
