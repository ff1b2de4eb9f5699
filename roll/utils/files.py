"""Looking at a path that a person wrote: it may lead nowhere, be no path at all, or lie where nobody may look."""

import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Kind = Literal["file", "directory", "device", "absent", "hidden", "impossible"]


@dataclass(frozen=True)
class Look:
    """What is at a path: a regular file, a directory, something else that can be opened (device), nothing, something
    that permissions hide, or a text that can be no path. `why` says so in words."""

    path: Path
    kind: Kind
    why: str

    @property
    def is_file(self) -> bool:
        return self.kind == "file"

    @property
    def is_directory(self) -> bool:
        return self.kind == "directory"

    @property
    def exists(self) -> bool:
        return self.kind in ("file", "directory", "device")


def look_at(path: Path | str) -> Look:
    """What is at a path, `~` included. Never raises for what was written.

    Example: look_at("~nosuchuser/x").why == "there is no user nosuchuser, so ~nosuchuser/x is no path"
    """
    path = Path(path)
    try:
        path = path.expanduser()
    except RuntimeError:
        return Look(path, "impossible", f"there is no user {path.parts[0][1:]}, so {path} is no path")
    try:
        mode = os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return Look(path, "absent", f"{path} does not exist")
    except PermissionError:
        return Look(path, "hidden", f"no permission to look at {path}")
    except (OSError, ValueError) as error:  # a name that is too long, links in a circle, a NUL, half a character
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        return Look(path, "impossible", f"{_short(path)} is no path ({reason[:1].lower()}{reason[1:]})")
    if stat.S_ISREG(mode):
        return Look(path, "file", f"{path} is a file")
    if stat.S_ISDIR(mode):
        return Look(path, "directory", f"{path} is a directory")
    return Look(path, "device", f"{path} is a device, a pipe or a socket")


def _short(path: Path) -> str:
    text = ascii(str(path))[1:-1]
    return text if len(text) <= 100 else f"{text[:97]}..."
