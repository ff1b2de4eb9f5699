r"""Amounts with a unit: 60 km/h, 3 \text{ cm}^2, 5 hours. Only where two amounts both name one, it is compared."""

import re
from fractions import Fraction
from functools import lru_cache

_LENGTHS = {
    "m": 1, "km": 1000, "cm": "1/100", "mm": "1/1000", "in": "0.0254", "inch": "0.0254", "ft": "0.3048",
    "feet": "0.3048", "foot": "0.3048", "yd": "0.9144", "yard": "0.9144", "mi": "1609.344", "mile": "1609.344",
    "meter": 1, "kilometer": 1000, "centimeter": "1/100", "millimeter": "1/1000",
}  # fmt: skip
_TIMES = {
    "s": 1, "sec": 1, "second": 1, "min": 60, "minute": 60, "h": 3600, "hr": 3600, "hour": 3600, "day": 86400,
    "week": 604800, "ms": "1/1000",
}  # fmt: skip
_MASSES = {"g": 1, "gram": 1, "kg": 1000, "kilogram": 1000, "mg": "1/1000", "lb": "453.59237", "pound": "453.59237"}
_VOLUMES = {"L": "1/1000", "l": "1/1000", "liter": "1/1000", "ml": "1/1000000", "mL": "1/1000000"}
_MONEY = {"dollar": 1, "cent": "1/100"}
_AMOUNTS = {"mol": 1, "mole": 1, "mmol": "1/1000"}
_YEARS = {"month": 1, "year": 12}
_BASES: dict[str, tuple[str, int, Fraction]] = {
    name: (dimension, power, Fraction(factor))
    for dimension, power, table in (
        ("length", 1, _LENGTHS),
        ("time", 1, _TIMES),
        ("mass", 1, _MASSES),
        ("length", 3, _VOLUMES),
        ("money", 1, _MONEY),
        ("amount", 1, _AMOUNTS),
        ("calendar", 1, _YEARS),
    )
    for name, factor in table.items()
}
_PREFIXES = {"m": "1/1000", "k": 1000, "M": 1000000, "G": 1000000000}
_SYMBOLS = {"N": "kg*m/s^2", "J": "kg*m^2/s^2", "W": "kg*m^2/s^3", "Pa": "kg/m/s^2"}
_COMPOUND = {
    "mph": "mile/hour", "kph": "km/h", "kmh": "km/h", "newton": "kg*m/s^2", "joule": "kg*m^2/s^2",
    "watt": "kg*m^2/s^3", "pascal": "kg/m/s^2", "kWh": "kW*h",
}  # fmt: skip
_SYMBOL = re.compile(rf"(?P<prefix>[{''.join(_PREFIXES)}]?)(?P<symbol>{'|'.join(_SYMBOLS)})")
_WITH_SYMBOL = re.compile(rf"(?<![A-Za-z]){_SYMBOL.pattern}(?![A-Za-z])")
_AMOUNT = re.compile(
    r"(?:[A-Za-z](?:_\w)?\s*=\s*)?(?P<number>[^A-Za-z\\]*\d[\d.,]*\}?)(?:\s|~|\\[,;: ])*(?P<unit>[A-Za-z\\].*)",
    re.DOTALL,
)
_GROUPS = re.compile(r"(?<=\d)(?:\{,\}|,)(?=\d{3}(?!\d))")
_FONT = re.compile(r"\\(?:text|textrm|mathrm|operatorname|mbox|rm|,|;|:| )(?![A-Za-z])|[{}$~]")
_FACTOR = re.compile(
    r"(?P<sign>^|/|per\b|\*|\\cdot(?![A-Za-z])|\u00b7|(?<=\s))\s*(?:(?P<word>sq(?:uare)?|cubic)\.?\s+)?"
    r"(?P<name>[A-Za-z]+)\.?\s*(?:\^?\s*(?P<power>-?[123]))?\s*"
)

_NAMES = "|".join(
    sorted(
        (
            *(name for name in (*_BASES, *_COMPOUND) if len(name) < 4),
            *(f"(?i:{name})" for name in (*_BASES, *_COMPOUND) if len(name) > 3),
            *(f"{prefix}{symbol}" for prefix in ("", *_PREFIXES) for symbol in _SYMBOLS),
        ),
        key=len,
        reverse=True,
    )
)
_ONE = rf"(?:(?:sq(?:uare)?|cubic)\.?\s+)?(?:{_NAMES})(?:es|s)?(?![A-Za-z])(?<!\bin)(?:\s?\^?\s?\{{?-?[123]\}}?(?!\d))?"
_INCHES = r"in(?:\.(?=\s|$)|(?=\s*(?:[,;:)$!?*^/]|\.?$|\.\s)))(?:\s?\^?\s?\{?[23]\}?)?"  # no "60 in total"
_BEHIND = re.compile(
    rf"[\s~$*]{{0,4}}(?:\\(?:text|mathrm)\s*\{{\s*)?(?P<unit>(?:{_ONE}|{_INCHES})(?:\s*(?:/|\bper\s|\u00b7)\s*(?:{_ONE}))*)"
    r"(?:\s?\}?[\s$]{0,2}(?:\^\s?\{?(?P<power>-?[123])\}?|(?P<sign>[²³]))(?!\d))?"
)

Unit = tuple[Fraction, frozenset[tuple[str, int]]]
"""The factor to the base units, and the power of each dimension."""


def amount(text: str) -> tuple[str, Unit] | None:
    r"""The number, as written, and its unit; None where there is none that is known.

    Example: r"60 \text{ km/h}" -> ("60", (5/18, length^1 time^-1))
    """
    match = _AMOUNT.fullmatch(text.strip(" $."))
    unit = _read(" ".join(_FONT.sub(" ", match["unit"]).split())) if match is not None else None
    return (match["number"].strip(), unit) if match is not None and unit is not None else None


def unit_behind(text: str, end: int) -> str:
    r"""The unit behind a number that ends there, with a blank before it; "" where none that is known is there.

    Examples: ("at 60 m/s now", 5) -> " m/s", (r"$8 \text{ cm}^2$", 2) -> " cm^2", ("10 N", 2) -> r" \text{N}"
    """
    match = _BEHIND.match(text, end)
    unit = "" if match is None else " ".join(match["unit"].split())
    if match is not None and (power := match["power"] or {"²": "2", "³": "3"}.get(match["sign"] or "")):
        unit += f"^{power}"
    if not unit or _read(unit) is None:
        return ""
    is_symbol = _WITH_SYMBOL.search(unit) is not None  # behind a number it could be a variable, too
    return rf" \text{{{unit}}}" if is_symbol else f" {unit}"


@lru_cache(maxsize=1024)
def _read(text: str) -> Unit | None:
    text = text.replace("**", "^").replace("^ ", "^")
    factor, powers, place = Fraction(1), dict[str, int](), 0
    while place < len(text):
        match = _FACTOR.match(text, place)
        base = _base(match["name"]) if match is not None else None
        if match is None or base is None:
            return None
        size, dimensions = base
        power = int(match["power"] or {"s": 2, "c": 3}.get((match["word"] or " ")[0], 1))
        power = -power if match["sign"] in ("/", "per") else power
        factor *= size**power
        for dimension, times in dimensions:
            powers[dimension] = powers.get(dimension, 0) + times * power
        place = match.end()
    return (factor, frozenset((name, power) for name, power in powers.items() if power)) if text else None


def _base(name: str) -> Unit | None:
    """A single unit: one of the tables, or a symbol with its prefix. Example: "kN" -> (1000000, mass length time^-2),
    in grams."""
    if (symbol := _SYMBOL.fullmatch(name)) is not None and name not in _BASES:
        factor, dimensions = _read(_SYMBOLS[symbol["symbol"]]) or (Fraction(1), frozenset())
        return factor * Fraction(_PREFIXES.get(symbol["prefix"], 1)), dimensions
    if name in _COMPOUND:
        return _read(_COMPOUND[name])
    if len(name) > 3:
        name = name.lower().replace("metre", "meter").replace("litre", "liter")
    singular = name[:-2] if name == "inches" else name[:-1] if name.endswith("s") and len(name) > 2 else name
    for known in (name, singular):
        if known in _COMPOUND:
            return _read(_COMPOUND[known])
        if known in _BASES:
            dimension, power, size = _BASES[known]
            return size, frozenset({(dimension, power)})
    return None


def in_one_unit(truth: str, answer: str) -> tuple[str, str] | None:
    r"""Both amounts as numbers in the truth's unit, where both name a unit; None where one does not. The answer is ""
    for a unit of another kind.

    Examples: ("60 km/h", "60 m/s") -> ("60", "60*18/5"), ("3 m", "300 cm") -> ("3", "300*1/100"), ("5 hours", "5 kg")
    -> ("5", "")
    """
    wanted, answered = amount(truth), amount(answer)
    if wanted is None or answered is None:
        return None
    (number, (size, kind)), (other, (other_size, other_kind)) = wanted, answered
    if kind != other_kind:
        return number, ""
    return number, other if size == other_size else f"{_GROUPS.sub('', other)}*{other_size / size}"
