"""Peaks of devices by the names that CUDA has."""

import pytest

from roll.configs.memory.passes import peak_flops


@pytest.mark.parametrize(
    "name, tflops",
    [
        ("NVIDIA A100-SXM4-80GB", 312),
        ("NVIDIA H100 80GB HBM3", 989.4),
        ("NVIDIA H100 PCIe", 756),
        ("NVIDIA H200", 989.4),
        ("NVIDIA L40S", 362.05),
        ("NVIDIA L4", 121),
        ("Tesla V100-SXM2-16GB", 125),
        ("NVIDIA GeForce RTX 4090", 165.2),
    ],
)
def test_devices_are_known_by_their_names(name: str, tflops: float) -> None:
    assert peak_flops(name) == pytest.approx(tflops * 1e12)


@pytest.mark.parametrize("name", ["NVIDIA RTX A4000", "NVIDIA A10G", "NVIDIA H100X", "NVIDIA GeForce RTX 4090 D", ""])
def test_what_is_not_in_the_table_is_not_guessed(name: str) -> None:
    assert peak_flops(name) is None
