"""Puts a fault into every Python process that starts with this folder on PYTHONPATH (`faults.broken`)."""

from tests.gpu.faults import install_from_environment

install_from_environment()
