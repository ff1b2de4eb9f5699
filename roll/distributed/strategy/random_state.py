"""torch's random generators of one rank, as a checkpoint holds them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch


def draw_apart(seed: int, place: int) -> None:
    """Makes ranks in different places draw different random numbers for dropout. Called once all weights exist, since
    all ranks must draw those alike."""
    torch.manual_seed(seed + place)


def random_state() -> dict[str, Any]:
    return {"cpu": torch.get_rng_state(), "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []}


def set_random_state(state: Mapping[str, Any]) -> None:
    torch.set_rng_state(state["cpu"])
    if torch.cuda.is_available() and state["cuda"]:
        torch.cuda.set_rng_state_all(state["cuda"])


def random_state_file(directory: Path, rank: int) -> Path:
    return directory / f"random_state_{rank}.pt"
