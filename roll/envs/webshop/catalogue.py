"""Catalogue of a shop: products, goals of its customers, and the files they are read from."""

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from roll.envs.tools.search import Bm25
from roll.errors import EnvError

Split = Literal["all", "train", "val"]
PRODUCT_FILE, GOAL_FILE = "products.jsonl", "goals.jsonl"
SHELF = Path(__file__).with_name("shelf")
"""A shop of a few products, for tests and laptops."""
HELD_OUT_SHARE = 8
"""One goal in so many is for validation."""
R = TypeVar("R", bound="_Record")


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Product(_Record):
    """`category` is a path from the widest to the narrowest; `options` are names of choices with their values."""

    asin: str
    title: str
    category: tuple[str, ...]
    query: str
    price: float
    attributes: tuple[str, ...] = ()
    options: Mapping[str, tuple[str, ...]] = {}
    description: str = ""
    features: tuple[str, ...] = ()


class Goal(_Record):
    """Goal of a customer: a product like `asin`, with all of `attributes` and `options`, for at most `price_upper`
    (none: any price)."""

    asin: str
    instruction: str
    attributes: tuple[str, ...]
    options: tuple[str, ...] = ()
    price_upper: float | None = None


class Catalogue:
    def __init__(self, products: Sequence[Product], goals: Sequence[Goal]):
        self.products = {product.asin.lower(): product for product in products}
        self._goals = tuple(goals)
        self._order = tuple(self.products)
        self._index = Bm25([_searched(product) for product in self.products.values()])
        if unknown := [goal.asin for goal in goals if goal.asin.lower() not in self.products]:
            raise EnvError(f"a goal names the product {unknown[0]}, which does not exist")

    def goals(self, split: Split) -> tuple[Goal, ...]:
        if split == "all":
            return self._goals
        return tuple(g for i, g in enumerate(self._goals) if (i % HELD_OUT_SHARE == 0) == (split == "val"))

    def search(self, query: str, count: int) -> list[str]:
        return [self._order[place] for place, _ in self._index.search(query, count)]


@functools.lru_cache(maxsize=4)
def load_catalogue(folder: str | None) -> Catalogue:
    """One per process. None: the built-in one. Raises EnvError."""
    folder = folder or str(SHELF)
    if not Path(folder).is_dir():
        raise EnvError(f"data: {folder} is no folder; roll.envs.webshop.prepare makes one")
    return Catalogue(_records(Path(folder, PRODUCT_FILE), Product), _records(Path(folder, GOAL_FILE), Goal))


def _searched(product: Product) -> str:
    chosen = " ".join(value for values in product.options.values() for value in values)
    parts = [product.title, product.query, *product.category, *product.attributes, *product.features, chosen]
    return " ".join([*parts, product.description])


def _records(path: Path, kind: type[R]) -> list[R]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        return [kind.model_validate_json(line) for line in lines if line.strip()]
    except ValidationError as error:
        raise EnvError(f"{path} holds what is no {kind.__name__.lower()}: {error.errors()[0]['msg']}") from None
    except (OSError, ValueError) as error:
        raise EnvError(f"{path} cannot be read: {error}") from None
