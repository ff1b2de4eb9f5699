"""Names that an answer may use without importing them, as on the sites that such tasks come from."""

import bisect
import collections
import copy
import datetime
import functools
import heapq
import itertools
import json
import math
import operator
import random
import re
import string
import sys
import typing

MODULES = (
    *(bisect, collections, copy, datetime, functools, heapq, itertools, json, math, operator, random, re, string, sys),
    typing,
)
FROM = {
    typing: "Any Callable Deque Dict FrozenSet Generator Iterable Iterator List Mapping Optional Sequence Set Tuple "
    "Union",
    collections: "ChainMap Counter OrderedDict defaultdict deque namedtuple",
    functools: "cache cmp_to_key lru_cache partial reduce",
    heapq: "heapify heappop heappush heappushpop heapreplace merge nlargest nsmallest",
    bisect: "bisect bisect_left bisect_right insort insort_left insort_right",
    itertools: "accumulate chain combinations count cycle groupby islice pairwise permutations product zip_longest",
    math: "ceil comb dist factorial floor gcd inf isclose isqrt lcm log log2 perm pi prod sqrt",
    copy: "deepcopy",
}

LIBRARIES = {"np": "numpy", "numpy": "numpy", "pd": "pandas", "pandas": "pandas", "pytest": "pytest"}
LIBRARIES["unittest"] = "unittest"  # what tests call so without importing it is never the answer's


def common_names():
    names = {module.__name__: module for module in MODULES}
    for module, listed in FROM.items():
        names |= {name: getattr(module, name) for name in listed.split() if hasattr(module, name)}
    return names
