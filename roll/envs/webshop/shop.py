"""`webshop`: a customer's wish, a search, and pages to click through until something is bought."""

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Literal

from roll.envs.base import SUCCESS, VALID, Env, EnvStep
from roll.envs.tools.search import search_terms
from roll.envs.webshop.catalogue import Goal, Product, Split, load_catalogue
from roll.errors import EnvError

ACTION = re.compile(r"(search|click)\[(.*)\]", re.DOTALL)
PER_PAGE, MOST_RESULTS = 10, 50
BACK, NEXT, PREVIOUS, BUY = "back to search", "next >", "< prev", "buy now"
TABS = ("description", "features", "attributes")
SEPARATOR = " [SEP] "


@dataclass(frozen=True)
class Page:
    """The customer's page: the search bar without a query, a product with an asin, a page below the product with a
    tab."""

    query: str | None = None
    number: int = 1
    asin: str | None = None
    tab: str | None = None


class WebShop(Env):
    """Actions are `search[words]` and `click[what is on the page]`. Buying ends the episode and earns what the paper's
    reward says, 1 at most (see reward.py).

    `data` is a folder that roll.envs.webshop.prepare made; without one there is a shop of a few
    products. `split` keeps one goal in eight for validation. `mode` train draws goals by the seed, val takes them in
    turn.
    """

    reward_range = (0.0, 1.0)
    instruction = (
        "You are in a web shop and buy what is asked for. search[words] finds products, from the search page alone; "
        "click[text] follows what stands on the page between [SEP]: a product's number, an option, Buy Now and others."
    )

    def __init__(
        self,
        data: str | None = None,
        split: Split = "all",
        mode: Literal["train", "val"] = "train",
        observation_mode: Literal["text"] = "text",
        max_steps: int | None = None,
    ):
        if split not in ("all", "train", "val") or mode not in ("train", "val"):
            raise EnvError(f"split: {split} must be all, train or val, and mode: {mode} train or val")
        if observation_mode != "text":
            raise EnvError(f"observation_mode: {observation_mode} is not supported; use text")
        if not load_catalogue(data).goals(split):
            raise EnvError(f"split: {split} has no goals")
        self._data, self._mode, self._max_steps = data, mode, max_steps
        self._split: Split = split

    def reset(self, seed: int) -> str:
        goals = load_catalogue(self._data).goals(self._split)
        place = seed % len(goals) if self._mode == "val" else random.Random(f"webshop {seed}").randrange(len(goals))
        self.goal: Goal = goals[place]
        self._go(Page())
        self._steps = 0
        return self.render()

    def step(self, action: str) -> EnvStep:
        self._steps += 1
        match = ACTION.fullmatch(action.strip())
        kind, what = (match[1], match[2].strip()) if match else ("", "")
        if kind == "click" and what.lower() == BUY and BUY in self.buttons():
            return self._buy()
        valid = self._search(what) if kind == "search" else kind == "click" and self._click(what.lower())
        cut = self._max_steps is not None and self._steps >= self._max_steps
        return EnvStep(self.render(), 0.0, False, cut, {VALID: float(valid), SUCCESS: 0.0})

    def buttons(self) -> list[str]:
        page = self._page
        if page.query is None:
            return []
        if page.tab is not None:
            return [BACK, PREVIOUS]
        if page.asin is not None:
            options = [value.lower() for values in self._product.options.values() for value in values]
            return [BACK, PREVIOUS, *options, *TABS, BUY]
        more = [NEXT] if page.number * PER_PAGE < len(self._results) else []
        return [BACK, *more, *([PREVIOUS] if page.number > 1 else []), *self._shown]

    def render(self) -> str:
        page = self._page
        parts = ["Instruction:", self.goal.instruction]
        if page.query is None:
            return SEPARATOR.join(["WebShop", *parts, "Search"])
        parts.append("Back to Search")
        if page.tab is not None:
            return SEPARATOR.join([*parts, "< Prev", self._of_tab(page.tab)])
        return SEPARATOR.join([*parts, *(self._of_results() if page.asin is None else self._of_product())])

    def random_action(self, rng: random.Random) -> str:
        buttons = self.buttons()
        if buttons:
            return f"click[{rng.choice(buttons)}]"
        return f"search[{' '.join(rng.sample(self.goal.instruction.split(), 2))}]"

    @property
    def _product(self) -> Product:
        return load_catalogue(self._data).products[self._page.asin or ""]

    @property
    def _shown(self) -> list[str]:
        return self._results[(self._page.number - 1) * PER_PAGE : self._page.number * PER_PAGE]

    def _go(self, page: Page) -> bool:
        if page.query is None:
            self._results: list[str] = []
        if page.asin is None:
            self.chosen: dict[str, str] = {}
        self._page = page
        return True

    def _search(self, query: str) -> bool:
        if self._page.query is not None or not query:
            return False
        self._results = load_catalogue(self._data).search(query, MOST_RESULTS)
        return self._go(Page(query))

    def _click(self, what: str) -> bool:
        page = self._page
        if what not in self.buttons():
            return False
        if what == BACK:
            return self._go(Page())
        if what == NEXT:
            return self._go(Page(page.query, page.number + 1))
        if what == PREVIOUS:
            if page.asin is None:
                return self._go(Page(page.query, page.number - 1))
            return self._go(Page(page.query, page.number, page.asin if page.tab else None))
        if page.asin is None:
            return self._go(Page(page.query, page.number, what))
        for name, values in self._product.options.items():
            if what in [value.lower() for value in values]:
                self.chosen[name] = what
                return True
        return self._go(Page(page.query, page.number, page.asin, what))

    def _buy(self) -> EnvStep:
        wanted = load_catalogue(self._data).products[self.goal.asin.lower()]
        verdict = judge(self._product, list(self.chosen.values()), self.goal, wanted)
        metrics = {
            VALID: 1.0,
            SUCCESS: float(verdict.reward == 1.0),
            "type_match": verdict.type,
            "attribute_match": verdict.attributes,
            "option_match": verdict.options,
            "price_match": verdict.price,
        }
        said = SEPARATOR.join(["Thank you for shopping with us!", f"Your score: {verdict.reward:.2f}"])
        return EnvStep(said, verdict.reward, True, False, metrics)

    def _of_results(self) -> list[str]:
        page = self._page
        parts = [f"Page {page.number} (Total results: {len(self._results)})"]
        parts += [shown for button, shown in ((NEXT, "Next >"), (PREVIOUS, "< Prev")) if button in self.buttons()]
        for asin in self._shown:
            product = load_catalogue(self._data).products[asin]
            parts += [product.asin, product.title, f"${product.price:.2f}"]
        return parts

    def _of_product(self) -> list[str]:
        product, parts = self._product, ["< Prev"]
        for name, values in product.options.items():
            parts.append(name)
            parts += [f"{value} (chosen)" if self.chosen.get(name) == value.lower() else value for value in values]
        return [*parts, product.title, f"Price: ${product.price:.2f}", *(tab.capitalize() for tab in TABS), "Buy Now"]

    def _of_tab(self, tab: str) -> str:
        product = self._product
        if tab == "description":
            return product.description or "None"
        return SEPARATOR.join(product.features if tab == "features" else product.attributes) or "None"


# The reward of a purchase: Yao et al., WebShop (2022), eq. 1 and appendix A.3.

ALIKE = 0.85
SHARED_CATEGORIES = 2
FUNCTION_WORDS = frozenset(
    {"a", "an", "and", "are", "as", "at", "be", "by", "can", "for", "from", "has", "have", "in", "into", "is", "it"}
    | {"its", "of", "on", "or", "per", "that", "the", "their", "this", "to", "up", "with", "you", "your"}
)


@dataclass(frozen=True)
class Verdict:
    """`reward` = type x (attributes met + options met + price met) / (attributes + options + 1). The other fields are
    shares; those of nothing asked for are 1."""

    reward: float
    type: float
    attributes: float
    options: float
    price: float


def judge(bought: Product, chosen: Sequence[str], goal: Goal, wanted: Product) -> Verdict:
    """Judges the purchase of `bought` with the options `chosen`, for a goal that was made from `wanted`."""
    kind = type_match(bought, wanted)
    attributes = sum(has_attribute(bought, attribute) for attribute in goal.attributes)
    options = sum(any(alike(option, one) for one in chosen) for option in goal.options)
    price = float(goal.price_upper is None or bought.price <= goal.price_upper)
    met = attributes + options + price
    return Verdict(
        reward=kind * met / (len(goal.attributes) + len(goal.options) + 1),
        type=kind,
        attributes=attributes / len(goal.attributes) if goal.attributes else 1.0,
        options=options / len(goal.options) if goal.options else 1.0,
        price=price,
    )


def type_match(bought: Product, wanted: Product) -> float:
    """1 for a product of the same kind, .5 where neither query, category nor title say so, .1 and 0 where titles share
    next to nothing, and nothing. The paper compares the nouns of titles; here it is all words that are no function
    words."""
    title = text_match(bought.title, wanted.title)
    if title == 0:
        return 0.0
    if title < 0.1:
        return 0.1
    same_query = bought.query.strip().lower() == wanted.query.strip().lower()
    same_category = len(set(bought.category) & set(wanted.category)) >= SHARED_CATEGORIES
    return 1.0 if same_query or same_category or title > 0.2 else 0.5


def text_match(title: str, wanted: str) -> float:
    """The share of the wanted title's words that the other has too; .2 where it has none."""
    wanted_words = set(search_terms(wanted)) - FUNCTION_WORDS
    return len(wanted_words & set(search_terms(title))) / len(wanted_words) if wanted_words else 0.2


def has_attribute(product: Product, attribute: str) -> bool:
    text = " ".join([product.title, *product.features, product.description]).lower()
    return attribute.lower() in text or any(alike(attribute, one) for one in product.attributes)


def alike(first: str, second: str) -> bool:
    """Whether two phrases have about the same words, in any order; one may have more (`token_set_ratio` > 85).

    Example: "dark blue" is like "blue, dark" and like "dark blue wash", not like "dark green".
    """
    a, b = set(search_terms(first)), set(search_terms(second))
    shared = " ".join(sorted(a & b))
    full = [" ".join(part for part in (shared, " ".join(sorted(rest))) if part) for rest in (a - b, b - a)]
    pairs = [(full[0], full[1])] + [(shared, whole) for whole in full if shared]
    return any(SequenceMatcher(None, x, y, autojunk=False).ratio() > ALIKE for x, y in pairs)
