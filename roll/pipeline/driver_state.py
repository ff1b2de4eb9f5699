"""The driver's own part of a checkpoint, as JSON."""

import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from roll.errors import ConfigError
from roll.utils.secrets import redact

_STATE = "driver_state.json"


def write_state(directory: Path, state: Mapping[str, Any]) -> Path:
    """Writes the driver's part of a checkpoint: step, data cursor, RNG and scheduler states, plan digest, config.

    As JSON: numpy numbers and arrays become numbers and lists, what stands under `config` is redacted, and anything
    that JSON cannot hold is a TypeError. Nothing is ever pickled.
    """
    safe = {key: redact(value) if key == "config" else value for key, value in state.items()}
    path = directory / _STATE
    path.write_text(json.dumps(safe, indent=1, default=_from_numpy))
    return path


def read_state(directory: Path) -> dict[str, Any]:
    """What write_state wrote. Tuples have become lists and number keys texts, as JSON has it."""
    try:
        return json.loads((directory / _STATE).read_text())
    except FileNotFoundError:
        raise ConfigError(f"{directory} has no {_STATE}: it holds no driver state to resume from") from None


def rng_state(rng: random.Random | np.random.Generator) -> dict[str, Any]:
    """The state of a generator in JSON's own types."""
    if isinstance(rng, random.Random):
        version, words, gauss = rng.getstate()
        return {"kind": "python", "version": version, "words": list(words), "gauss": gauss}
    return {"kind": "numpy", "state": json.loads(json.dumps(rng.bit_generator.state, default=_from_numpy))}


def restore_rng(rng: random.Random | np.random.Generator, state: Mapping[str, Any]) -> None:
    """Continues the sequence where rng_state took it. A state of another kind of generator is a ValueError."""
    kind = "python" if isinstance(rng, random.Random) else "numpy"
    if state["kind"] != kind:
        raise ValueError(f"a {state['kind']} generator state cannot continue a {kind} generator")
    if isinstance(rng, random.Random):
        rng.setstate((state["version"], tuple(state["words"]), state["gauss"]))
    else:
        rng.bit_generator.state = state["state"]


def _from_numpy(value: Any) -> Any:
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    raise TypeError(f"a checkpoint's state holds only what JSON can: got {type(value).__name__} {value!r:.80}")
