"""Read while tests are collected, before any rank is started."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.helpers import processes

processes.PRELOADED = (*processes.PRELOADED, "tests.parity.megatron.preloaded")


@pytest.fixture(scope="session")
def family_dir(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """family_dir("llama", tie_word_embeddings=True, ...) -> a model directory; made once."""
    from tests.parity.megatron import models

    made: dict[str, Path] = {}

    def make(family: str, **changes: object) -> Path:
        key = repr((family, sorted(changes.items(), key=str)))
        if key not in made:
            made[key] = models.make(tmp_path_factory.mktemp(family), family, **changes)
        return made[key]

    return make
