"""The folder for a machine without a network: what it carries, and what it leaves out."""

import zipfile
from pathlib import Path

from tools.gpu_bundle import CARRIED, LOCK, RUN, WITHOUT_WHEELS, _shorten, _versions


def test_every_package_has_the_version_of_the_lock():
    assert set(CARRIED) <= _versions(LOCK.read_text()).keys()
    assert set(WITHOUT_WHEELS) <= set(CARRIED)


def test_a_wheel_of_ray_loses_its_java_and_keeps_what_may_be_executed(tmp_path: Path):
    wheel = tmp_path / "ray-1-py3-none-any.whl"
    program = zipfile.ZipInfo("ray/core/raylet")
    program.external_attr = 0o755 << 16
    with zipfile.ZipFile(wheel, "w") as content:
        content.writestr(program, "binary")
        content.writestr("ray/jars/ray_dist.jar", "java")
        content.writestr("ray-1.dist-info/RECORD", "ray/core/raylet,,\nray/jars/ray_dist.jar,,\n")
    _shorten(wheel)
    with zipfile.ZipFile(wheel) as content:
        assert content.namelist() == ["ray/core/raylet", "ray-1.dist-info/RECORD"]
        assert content.read("ray-1.dist-info/RECORD") == b"ray/core/raylet,,\n"
        assert content.getinfo("ray/core/raylet").external_attr == 0o755 << 16
    assert list(tmp_path.iterdir()) == [wheel]


def test_the_command_takes_no_network_and_keeps_the_exit_code():
    assert "--no-index" in RUN
    assert RUN.rstrip().endswith("exit $status")
