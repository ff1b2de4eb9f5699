"""Makes the shop of `webshop` from WebShop's public files: `python -m roll.envs.webshop.prepare
--products items_shuffle_1000.json --attributes items_ins_v2_1000.json [--instructions items_human_ins.json] --out DIR`.

The files come from github.com/princeton-nlp/WebShop (setup.sh names them). With `--instructions` goals are those that
people wrote, else those made from the attributes.
"""

import argparse
import json
import random
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from roll.envs.webshop.catalogue import GOAL_FILE, PRODUCT_FILE, Goal, Product

PRICE = re.compile(r"\d[\d,]*(?:\.\d+)?")
LIMITS = [10.0 * i for i in range(1, 100)]
MISSING_PRICE = 100.0  # WebShop's
SEED = 233  # WebShop shuffles its goals with it


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Makes the shop of env_type: webshop from WebShop's public files.")
    parser.add_argument("--products", type=Path, required=True, help="items_shuffle.json, or its 1000 first")
    parser.add_argument("--attributes", type=Path, required=True, help="items_ins_v2.json, or its 1000 first")
    parser.add_argument("--instructions", type=Path, help="items_human_ins.json")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args(arguments)
    items, attributes = _read(options.products), _read(options.attributes)
    products = {product.asin: product for product in _products(items, attributes)}
    written = _read(options.instructions) if options.instructions else {a: [row] for a, row in attributes.items()}
    goals = list(_goals(products, written))
    random.Random(SEED).shuffle(goals)
    options.out.mkdir(parents=True, exist_ok=True)
    for name, records in ((PRODUCT_FILE, products.values()), (GOAL_FILE, goals)):
        text = "".join(record.model_dump_json() + "\n" for record in records)
        (options.out / name).write_text(text, encoding="utf-8")
    sys.stdout.write(f"{options.out}: {len(products)} products and {len(goals)} goals\n")
    return 0 if goals else 1


def _read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def _products(items: Sequence[Mapping[str, Any]], attributes: Mapping[str, Mapping[str, Any]]) -> Iterator[Product]:
    """One per asin; of a range of prices the lowest counts."""
    for item in items:
        asin = item["asin"]
        if asin == "nan" or len(asin) > 10:  # as WebShop does
            continue
        prices = [float(price.replace(",", "")) for price in PRICE.findall(str(item.get("pricing") or ""))]
        yield Product(
            asin=asin,
            title=item["name"],
            category=tuple(part.strip() for part in str(item.get("product_category") or "").split("›")),
            query=str(item.get("query") or "").strip().lower(),
            price=min(prices, default=MISSING_PRICE),
            attributes=tuple(attributes.get(asin, {}).get("attributes") or ("DUMMY_ATTR",)),
            options={
                name.lower(): tuple(str(one["value"]).strip().replace("/", " | ").lower() for one in values)
                for name, values in (item.get("customization_options") or {}).items()
                if values
            },
            description=str(item.get("full_description") or ""),
            features=tuple(str(one) for one in item.get("small_description") or ()),
        )


def _goals(products: Mapping[str, Product], written: Mapping[str, Sequence[Mapping[str, Any]]]) -> Iterator[Goal]:
    """Goals without attributes are left out. The limit of the price is one of tens above it, drawn by the asin."""
    for asin, rows in written.items():
        for place, row in enumerate(rows):
            if asin not in products or not row.get("instruction") or not row.get("instruction_attributes"):
                continue
            above = [limit for limit in LIMITS if limit > products[asin].price][:4]
            limit = max(random.Random(f"{asin} {place}").sample(above, 2)) if len(above) > 1 else None
            price_text = "" if limit is None else f", and price lower than {limit:.2f} dollars"
            options = row.get("instruction_options") or ()
            yield Goal(
                asin=asin,
                instruction=row["instruction"].strip(" .") + price_text,
                attributes=tuple(row["instruction_attributes"]),
                options=tuple(str(one) for one in (options.values() if isinstance(options, Mapping) else options)),
                price_upper=limit,
            )


if __name__ == "__main__":
    sys.exit(main())
