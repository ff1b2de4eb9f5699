"""The web shop: pages, rewards worked out by hand from the paper's formula, and the files it is made from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from roll.envs.webshop import prepare
from roll.envs.webshop.catalogue import Goal, Product, load_catalogue
from roll.envs.webshop.shop import WebShop, judge, type_match
from tests.helpers.cases import cases

SHOP = load_catalogue(None)
GOAL = SHOP.goals("all")[0]  # waterproof, rubber sole; brown, 10; below 70: five things to meet
SHOE = SHOP.products["b0shoe0001"]


def product(title: str, **keys: Any) -> Product:
    values = {"asin": "X", "category": ("A", "B"), "query": "other", "price": 10.0} | keys
    return Product.model_validate({"title": title, **values})


@cases("asin, chosen, reward")
def test_a_purchase_earns_the_share_of_what_it_meets(asin: str, chosen: list[str], reward: float) -> None:
    assert judge(SHOP.products[asin], chosen, GOAL, SHOE).reward == pytest.approx(reward)


@pytest.mark.parametrize(
    ("bought", "kind"),
    [
        (product("Waterproof Phone Bag"), 0.5),  # one of six words
        (product("Waterproof Phone Bag", query=SHOE.query), 1.0),
        (product("Waterproof Phone Bag", category=SHOE.category[:2]), 1.0),
        (product("Waterproof Phone Bag", category=SHOE.category[:1]), 0.5),
        (product("Waterproof Hiking Bag"), 1.0),  # two of six
        (product("Phone Bag", query=SHOE.query), 0.0),
    ],
)
def test_the_kind_of_product_weighs_the_whole(bought: Product, kind: float) -> None:
    assert type_match(bought, SHOE) == kind
    verdict = judge(bought, [], GOAL, SHOE)
    met = 1 + ("Waterproof" in bought.title)
    assert verdict.reward == pytest.approx(kind * met / 5)


def test_a_customer_searches_looks_chooses_and_buys() -> None:
    shop = WebShop(mode="val")
    wish = f"Instruction: [SEP] {GOAL.instruction}"
    assert shop.reset(0) == f"WebShop [SEP] {wish} [SEP] Search"
    assert shop.buttons() == []
    step = shop.step("search[waterproof hiking shoe]")
    assert (step.metrics["action_is_valid"], step.reward, step.terminated) == (1.0, 0.0, False)
    assert step.observation.startswith(f"{wish} [SEP] Back to Search [SEP] Page 1 (Total results: ")
    assert "[SEP] B0SHOE0001 [SEP] Trailhead Men's Waterproof Hiking Shoe [SEP] $59.90" in step.observation
    step = shop.step("click[B0SHOE0001]")
    assert step.observation == (
        f"{wish} [SEP] Back to Search [SEP] < Prev [SEP] size [SEP] 8 [SEP] 9 [SEP] 10 [SEP] 11 [SEP] color [SEP] "
        "brown [SEP] dark grey [SEP] Trailhead Men's Waterproof Hiking Shoe [SEP] Price: $59.90 [SEP] Description "
        "[SEP] Features [SEP] Attributes [SEP] Buy Now"
    )
    assert "brown (chosen)" in shop.step("click[brown]").observation
    assert shop.step("click[Features]").observation == (
        f"{wish} [SEP] Back to Search [SEP] < Prev [SEP] Rubber sole [SEP] Lace closure"
    )
    assert shop.step("click[buy now]").metrics["action_is_valid"] == 0.0
    assert "brown (chosen)" in shop.step("click[< Prev]").observation
    shop.step("click[10]")
    step = shop.step("click[Buy Now]")
    assert (step.reward, step.terminated) == (1.0, True)
    assert step.metrics == {
        "action_is_valid": 1.0, "success": 1.0, "type_match": 1.0, "attribute_match": 1.0, "option_match": 1.0,
        "price_match": 1.0,
    }  # fmt: skip


def test_options_are_forgotten_with_the_product_and_pages_turn(tmp_path: Path) -> None:
    make_shop(tmp_path, 25)
    shop = WebShop(str(tmp_path / "shop"), mode="val")
    shop.reset(0)
    assert shop.step("search[lamp]").observation.count("$") == 10
    assert "Page 2 (Total results: 25) [SEP] Next > [SEP] < Prev" in shop.step("click[next >]").observation
    assert shop.step("click[next >]").observation.count("$") == 5
    assert "next >" not in shop.buttons()
    asin = shop.buttons()[-1]
    shop.step(f"click[{asin}]")
    shop.step("click[red]")
    assert shop.chosen == {"color": "red"}
    shop.step("click[< prev]")
    assert "Page 3" in shop.render()
    shop.step(f"click[{asin}]")
    assert shop.chosen == {}
    assert "Search" in shop.step("click[back to search]").observation and shop.buttons() == []


def make_shop(folder: Path, count: int) -> None:
    """A shop prepared from files in the form of WebShop's own."""
    items = [
        {
            "asin": f"L{i:03}", "name": f"Desk Lamp {i}", "query": "desk lamps", "product_category": "Home › Lamps",
            "pricing": ["$1,020.00", "$19.50"], "full_description": "It shines.", "small_description": ["bright"],
            "customization_options": {"Color": [{"value": " Red/Blue "}, {"value": "red"}], "Size": None},
        }
        for i in range(count)
    ]  # fmt: skip
    rules = {
        f"L{i:03}": {
            "attributes": ["dimmable"], "instruction": f"a lamp like {i}.", "instruction_attributes": ["dimmable"]
        }
        for i in range(count)
    }  # fmt: skip
    written = {
        "L000": [
            {"instruction": "a dimmable lamp", "instruction_attributes": ["dimmable"], "instruction_options": ["red"]},
            {"instruction": "nothing to ask", "instruction_attributes": []},
        ],
        "GONE": [{"instruction": "x", "instruction_attributes": ["y"]}],
    }
    for name, value in (("items", items), ("rules", rules), ("written", written)):
        (folder / f"{name}.json").write_text(json.dumps(value))
    common = ["--products", f"{folder}/items.json", "--attributes", f"{folder}/rules.json"]
    assert prepare.main([*common, "--out", f"{folder}/shop"]) == 0
    assert prepare.main([*common, "--instructions", f"{folder}/written.json", "--out", f"{folder}/people"]) == 0


def test_a_shop_is_made_from_webshops_files(tmp_path: Path) -> None:
    make_shop(tmp_path, 9)
    made, people = (load_catalogue(str(tmp_path / name)) for name in ("shop", "people"))
    lamp = made.products["l003"]
    assert (lamp.price, lamp.category, lamp.attributes) == (19.5, ("Home", "Lamps"), ("dimmable",))
    assert lamp.options == {"color": ("red | blue", "red")}
    assert len(made.goals("all")) == 9
    assert [len(made.goals(split)) for split in ("train", "val")] == [7, 2]
    assert not set(made.goals("train")) & set(made.goals("val"))
    (goal,) = people.goals("all")
    assert (goal.asin, goal.attributes, goal.options) == ("L000", ("dimmable",), ("red",))
    assert goal.price_upper in (30.0, 40.0, 50.0)
    assert goal.instruction == f"a dimmable lamp, and price lower than {goal.price_upper:.2f} dollars"
    assert prepare.main(
        ["--products", f"{tmp_path}/items.json", "--attributes", f"{tmp_path}/rules.json", "--out", f"{tmp_path}/again"]
    ) == 0  # fmt: skip
    for name in ("products.jsonl", "goals.jsonl"):
        assert (tmp_path / "again" / name).read_bytes() == (tmp_path / "shop" / name).read_bytes()


def test_every_goal_of_the_shelf_can_be_met() -> None:
    goals = SHOP.goals("all")
    assert goals
    for goal in goals:
        wanted = SHOP.products[goal.asin.lower()]
        offered = [value for values in wanted.options.values() for value in values]
        assert all(option in offered for option in goal.options)
        assert judge(wanted, goal.options, goal, wanted).reward == 1.0, goal


def test_the_goal_follows_from_the_seed_and_stays_within_its_split() -> None:
    def wishes(**keys: Any) -> list[Goal]:
        shops = [WebShop(**keys) for _ in range(30)]
        for seed, shop in enumerate(shops):
            shop.reset(seed)
        return [shop.goal for shop in shops]

    assert wishes() == wishes()
    assert set(wishes(split="train")) == set(SHOP.goals("train"))
    assert wishes(split="val", mode="val")[:2] == list(SHOP.goals("val"))
