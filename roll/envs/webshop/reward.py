"""Reward of a purchase: Yao et al., WebShop (2022), eq. 1 and appendix A.3. 1 and appendix A.3."""

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from roll.envs.tools.search import search_terms
from roll.envs.webshop.catalogue import Goal, Product

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
