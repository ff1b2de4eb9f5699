"""Lets torchvision be imported where its compiled part cannot be loaded: a CUDA build beside a CPU build of torch.

`import torchvision` describes the operators nms and qnms, which its compiled part should have declared, and dies when
they do not exist. They are declared here just before that import; calling one still fails. A .pth file imports this
module when Python starts, so that processes started by an engine have it too. It costs nothing until torchvision is
looked for.
"""

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

OPERATORS = ("nms", "qnms")
_declared: list[object] = []  # the library must outlive this function, or torch forgets the operators


class TorchvisionWatcher(MetaPathFinder):
    """Finds nothing itself; when torchvision is looked for, it steps aside and declares what is missing."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname == "torchvision":
            sys.meta_path.remove(self)
            spec = PathFinder.find_spec(fullname, path)
            if spec is not None and spec.origin is not None:
                declare_missing_operators(Path(spec.origin).parent)
        return None


def declare_missing_operators(torchvision: Path) -> None:
    """Nothing with CUDA or ROCm, and nothing where the compiled part loads and so brings its operators."""
    import torch

    if torch.version.cuda is not None or torch.version.hip is not None:
        return
    for compiled in torchvision.glob("_C*.so"):
        try:
            torch.ops.load_library(str(compiled))
        except OSError:
            continue
        return
    library = torch.library.Library("torchvision", "FRAGMENT")
    for operator in OPERATORS:
        library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _declared.append(library)


def install() -> None:
    """Watch for torchvision, once: some Pythons read the .pth files of a virtual environment twice."""
    watching = any(isinstance(finder, TorchvisionWatcher) for finder in sys.meta_path)
    if not watching and "torchvision" not in sys.modules:
        sys.meta_path.insert(0, TorchvisionWatcher())
