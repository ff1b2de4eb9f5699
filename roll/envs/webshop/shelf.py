"""A shop of a few products, for tests and laptops."""

from collections.abc import Mapping, Sequence
from typing import Any

SHOES = ("Clothing, Shoes & Jewelry", "Men", "Shoes")
SHIRTS = ("Clothing, Shoes & Jewelry", "Men", "Shirts")
LAMPS = ("Home & Kitchen", "Lighting", "Lamps")
TEA = ("Grocery & Gourmet Food", "Beverages", "Tea")
SIZES = ("8", "9", "10", "11")

PRODUCTS: Sequence[Mapping[str, Any]] = (
    {
        "asin": "B0SHOE0001",
        "title": "Trailhead Men's Waterproof Hiking Shoe",
        "category": SHOES,
        "query": "men's hiking shoes",
        "price": 59.9,
        "attributes": ["waterproof", "rubber sole", "non slip"],
        "options": {"size": SIZES, "color": ["brown", "dark grey"]},
        "description": "A shoe for wet trails.",
        "features": ["Rubber sole", "Lace closure"],
    },
    {
        "asin": "B0SHOE0002",
        "title": "Trailhead Men's Light Hiking Shoe",
        "category": SHOES,
        "query": "men's hiking shoes",
        "price": 44.5,
        "attributes": ["rubber sole", "breathable"],
        "options": {"size": SIZES, "color": ["brown", "blue"]},
        "description": "A light shoe for dry trails.",
        "features": ["Mesh upper"],
    },
    {
        "asin": "B0SHOE0003",
        "title": "Strider Men's Running Sneaker",
        "category": SHOES,
        "query": "men's sneakers",
        "price": 35.0,
        "attributes": ["breathable", "memory foam"],
        "options": {"size": SIZES, "color": ["white", "black"]},
        "description": "For the road.",
        "features": ["Memory foam insole"],
    },
    {
        "asin": "B0SHIRT001",
        "title": "Oakley Lane Men's Long Sleeve Cotton Shirt",
        "category": SHIRTS,
        "query": "men's shirts",
        "price": 24.0,
        "attributes": ["long sleeve", "machine wash", "cotton"],
        "options": {"size": ["small", "medium", "large"], "color": ["white", "navy blue", "red"]},
        "description": "A shirt for every day.",
        "features": ["Machine wash", "Button closure"],
    },
    {
        "asin": "B0SHIRT002",
        "title": "Oakley Lane Men's Short Sleeve Linen Shirt",
        "category": SHIRTS,
        "query": "men's shirts",
        "price": 31.0,
        "attributes": ["short sleeve", "hand wash", "linen"],
        "options": {"size": ["small", "medium", "large"], "color": ["white", "sand"]},
        "description": "A shirt for hot days.",
        "features": ["Hand wash"],
    },
    {
        "asin": "B0LAMP0001",
        "title": "Lumen Desk Lamp with Dimmer",
        "category": LAMPS,
        "query": "desk lamps",
        "price": 27.5,
        "attributes": ["dimmable", "easy to install"],
        "options": {"color": ["white", "black"]},
        "description": "A lamp for work at night.",
        "features": ["Three levels of light"],
    },
    {
        "asin": "B0LAMP0002",
        "title": "Lumen Floor Lamp for Living Room",
        "category": LAMPS,
        "query": "floor lamps",
        "price": 62.0,
        "attributes": ["easy to install", "living room"],
        "options": {"color": ["white", "brass"]},
        "description": "A tall lamp.",
        "features": ["Foot switch"],
    },
    {
        "asin": "B0TEA00001",
        "title": "Morning Hill Organic Green Tea, 40 Bags",
        "category": TEA,
        "query": "green tea",
        "price": 9.8,
        "attributes": ["organic", "caffeine free", "gluten free"],
        "options": {"size": ["40 bags", "80 bags"]},
        "description": "Green tea from one garden.",
        "features": ["USDA organic"],
    },
    {
        "asin": "B0TEA00002",
        "title": "Morning Hill Black Tea with Bergamot, 40 Bags",
        "category": TEA,
        "query": "black tea",
        "price": 8.4,
        "attributes": ["gluten free", "individually wrapped"],
        "options": {"size": ["40 bags", "80 bags"]},
        "description": "Black tea for the afternoon.",
        "features": ["Wrapped one by one"],
    },
    {
        "asin": "B0MUG00001",
        "title": "Stoneware Mug with Handle",
        "category": ("Home & Kitchen", "Dining", "Mugs"),
        "query": "mugs",
        "price": 12.0,
        "attributes": ["dishwasher safe", "microwave safe"],
        "options": {"color": ["blue", "green"]},
        "description": "A mug for tea.",
        "features": ["Holds 350 ml"],
    },
)

GOALS: Sequence[Mapping[str, Any]] = (
    {
        "asin": "B0SHOE0001",
        "instruction": "i need waterproof hiking shoes for men with a rubber sole in brown, size 10, and price lower "
        "than 70.00 dollars",
        "attributes": ["waterproof", "rubber sole"],
        "options": ["brown", "10"],
        "price_upper": 70.0,
    },
    {
        "asin": "B0SHOE0002",
        "instruction": "find me breathable men's hiking shoes in blue, and price lower than 50.00 dollars",
        "attributes": ["breathable"],
        "options": ["blue"],
        "price_upper": 50.0,
    },
    {
        "asin": "B0SHOE0003",
        "instruction": "i want black sneakers with memory foam in size 9, and price lower than 40.00 dollars",
        "attributes": ["memory foam"],
        "options": ["black", "9"],
        "price_upper": 40.0,
    },
    {
        "asin": "B0SHIRT001",
        "instruction": "i am looking for a long sleeve men's shirt, machine wash, in navy blue and large, and price "
        "lower than 30.00 dollars",
        "attributes": ["long sleeve", "machine wash"],
        "options": ["navy blue", "large"],
        "price_upper": 30.0,
    },
    {
        "asin": "B0SHIRT002",
        "instruction": "get me a short sleeve linen shirt in sand, medium",
        "attributes": ["short sleeve", "linen"],
        "options": ["sand", "medium"],
    },
    {
        "asin": "B0LAMP0001",
        "instruction": "i need a dimmable desk lamp in black, and price lower than 30.00 dollars",
        "attributes": ["dimmable"],
        "options": ["black"],
        "price_upper": 30.0,
    },
    {
        "asin": "B0LAMP0002",
        "instruction": "a floor lamp for the living room that is easy to install, and price lower than 80.00 dollars",
        "attributes": ["easy to install", "living room"],
        "price_upper": 80.0,
    },
    {
        "asin": "B0TEA00001",
        "instruction": "organic green tea without caffeine, 80 bags, and price lower than 20.00 dollars",
        "attributes": ["organic", "caffeine free"],
        "options": ["80 bags"],
        "price_upper": 20.0,
    },
    {
        "asin": "B0TEA00002",
        "instruction": "i would like gluten free black tea, individually wrapped, and price lower than 10.00 dollars",
        "attributes": ["gluten free", "individually wrapped"],
        "price_upper": 10.0,
    },
    {
        "asin": "B0MUG00001",
        "instruction": "a dishwasher safe mug in green",
        "attributes": ["dishwasher safe"],
        "options": ["green"],
    },
)
