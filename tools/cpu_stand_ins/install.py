"""Put the two CPU stand-ins into the environment of the Python that runs this, or take them out where CUDA exists.

sglang imports `sgl_kernel` and torchvision unconditionally; neither works beside a CPU build of torch. See the two
modules in `site/`. Never needed with CUDA, never installed over a real package.
"""

import argparse
import shutil
import sys
import sysconfig
from importlib.machinery import PathFinder
from pathlib import Path

import torch

SOURCE = Path(__file__).resolve().parent / "site"
SGL_KERNEL, WATCHER = "sgl_kernel", ("roll_cpu_stand_ins.py", "roll_cpu_stand_ins.pth")


def is_ours(package: Path) -> bool:
    module = package / "__init__.py"
    return module.is_file() and "Stand-in for the kernels" in module.read_text(encoding="utf-8")[:200]


def remove(site: Path) -> None:
    if is_ours(site / SGL_KERNEL):
        shutil.rmtree(site / SGL_KERNEL)
    for name in WATCHER:
        (site / name).unlink(missing_ok=True)


def install(site: Path) -> list[str]:
    """Copy what is missing; the names of what is there now."""
    remove(site)
    for name in WATCHER:
        shutil.copy(SOURCE / name, site / name)
    if PathFinder.find_spec(SGL_KERNEL) is not None or (site / SGL_KERNEL).exists():
        return ["torchvision operators"]  # somebody's real sgl_kernel stays
    shutil.copytree(SOURCE / SGL_KERNEL, site / SGL_KERNEL, ignore=shutil.ignore_patterns("__pycache__"))
    return ["torchvision operators", SGL_KERNEL]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--into", type=Path, default=Path(sysconfig.get_path("purelib")), help="a site-packages folder")
    site = parser.parse_args().into
    if torch.version.cuda is not None or torch.version.hip is not None:
        remove(site)
        print("   stand-ins: not needed, torch has a GPU build")
    else:
        print(f"   stand-ins for CPU: {', '.join(install(site))}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
