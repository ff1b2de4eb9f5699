"""Read while tests are collected, before any rank is started."""

from tests.parity.megatron.conftest import family_dir

__all__ = ["family_dir"]
