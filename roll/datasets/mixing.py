"""The endless stream of training tasks: domains mixed in exact shares, every epoch shuffled, resumable anywhere."""

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from roll.errors import ConfigError
from roll.types.batch import Rows
from roll.types.columns import columns
from roll.types.rollout import Task

CURSOR_VERSION = 1


@dataclass(frozen=True)
class _Pool:
    """The tasks of one domain, in file order, walked through in a new order every epoch."""

    domain: str
    tasks: tuple[Task, ...]
    seed: int
    shuffle: bool
    size: int
    """Tasks of an epoch: those beyond are left out of it, in every epoch others."""

    def fingerprint(self) -> str:
        """Changes when the tasks, their order or any value in their rows do: a cursor into other data means nothing."""
        digest = hashlib.blake2b(digest_size=8)
        for task in self.tasks:
            digest.update(task.task_id.encode() + b"\0")
            digest.update(repr(sorted(task.payload.items())).encode(errors="surrogatepass") + b"\0")
        return digest.hexdigest()

    def order(self, epoch: int) -> np.ndarray:
        if not self.shuffle:
            return np.arange(len(self.tasks))
        domain = int.from_bytes(hashlib.blake2b(self.domain.encode(), digest_size=8).digest(), "little")
        return np.random.default_rng([self.seed, domain, epoch]).permutation(len(self.tasks))


class TaskMixer:
    """Draws tasks for training. Every `block` tasks (the prompts of a step) hold the same share of each domain.

    The counts of a block are the shares times its size, rounded by largest remainder; what a domain was given too much
    or too little is carried into the next block, so that shares hold exactly in the long run. Within a block the
    domains alternate evenly. The stream does not depend on how many tasks are asked for at once.

    `shares` count in proportion to their sum, a domain without one has none; None: as the domains occur in the data.
    Raises ConfigError for a share of a domain without rows.

    Example: shares math 2/3, code 1/3 and block 4 give math 3 code 1, math 2 code 2, math 3 code 1, and so on.
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        block: int,
        seed: int,
        shares: Mapping[str, float] | None = None,
        shuffle: bool = True,
        key: str = "actor_train.data_args",
        drop_last: bool = False,
    ):
        if not tasks or block < 1:
            raise ValueError("a mixer needs at least one task and a block of at least 1")
        by_domain: dict[str, list[Task]] = {}
        for task in tasks:
            by_domain.setdefault(task.domain, []).append(task)
        sizes = {
            name: whole(len(of_domain), block, key) if drop_last else len(of_domain)
            for name, of_domain in by_domain.items()
        }
        if drop_last and len(by_domain) > 1:
            raise ConfigError(f"{key}.drop_last: the rows are of {len(by_domain)} domains, but it works with one only.")
        self._pools = {
            name: _Pool(name, tuple(of_domain), seed, shuffle, sizes[name])
            for name, of_domain in sorted(by_domain.items())
        }
        self._shares = _exact_shares({name: len(pool.tasks) for name, pool in self._pools.items()}, shares, key)
        self._key = key
        self._block = block
        self._fingerprints = {name: pool.fingerprint() for name, pool in self._pools.items()}
        self._orders: dict[str, tuple[int, np.ndarray]] = {}  # domain -> (epoch, its order)
        self._drawn = dict.fromkeys(self._pools, 0)
        self._carry = dict.fromkeys(self._pools, Fraction(0))
        self._pending: list[str] = []  # the domains of the tasks left in the present block

    def next_tasks(self, count: int) -> list[Task]:
        return [self._next() for _ in range(count)]

    @property
    def num_tasks(self) -> int:
        """Number of tasks that an epoch draws."""
        return sum(pool.size for name, pool in self._pools.items() if self._shares[name] > 0)

    @property
    def epochs(self) -> dict[str, float]:
        """How often each domain's data has been gone through so far. Example: {"math": 1.25}"""
        return {name: self._drawn[name] / pool.size for name, pool in self._pools.items()}

    def state_dict(self) -> dict[str, Any]:
        """JSON values: what was drawn, what is left of the present block, what is carried into the next."""
        return {
            "version": CURSOR_VERSION,
            "drawn": dict(self._drawn),
            "pending": list(self._pending),
            "carry": {name: str(carry) for name, carry in self._carry.items()},
            "fingerprints": dict(self._fingerprints),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on where the state was taken. Shares and block may have changed since: they hold from the next block on.

        Raises ConfigError if the data are not the same.
        """
        if state.get("version") != CURSOR_VERSION:
            raise ConfigError(
                f"the data cursor has version {state.get('version')}, this program reads {CURSOR_VERSION}"
            )
        changed = sorted(
            name
            for name in self._fingerprints.keys() | state["fingerprints"].keys()
            if self._fingerprints.get(name) != state["fingerprints"].get(name)
        )
        if changed:
            raise ConfigError(
                f"{self._key}: the rows of {', '.join(changed)} are not those of the checkpoint, so its position in "
                "the data is not valid. Restore the files and their order, or start over: resume_from_checkpoint: "
                "false"
            )
        self._drawn = {name: int(state["drawn"][name]) for name in self._pools}
        self._carry = {name: Fraction(state["carry"][name]) for name in self._pools}
        self._pending = list(state["pending"])

    def _next(self) -> Task:
        if not self._pending:
            counts, self._carry = apportion(self._shares, self._block, self._carry)
            self._pending = interleave(counts)
        domain = self._pending.pop(0)
        pool, position = self._pools[domain], self._drawn[domain]
        self._drawn[domain] += 1
        epoch, place = divmod(position, pool.size)
        held = self._orders.get(domain)
        if held is None or held[0] != epoch:
            held = self._orders[domain] = (epoch, pool.order(epoch))
        return pool.tasks[held[1][place]]


def whole(num_rows: int, per_step: int, key: str) -> int:
    """Rows of the steps that they fill. Raises ConfigError where they fill none.

    Example: 10 rows, 4 in a step, are 8.
    """
    if num_rows < per_step:
        raise ConfigError(
            f"{key}.drop_last: {num_rows} rows do not fill a step of {per_step}. Remove it, or make steps smaller."
        )
    return num_rows - num_rows % per_step


def apportion(
    shares: Mapping[str, Fraction], count: int, carry: Mapping[str, Fraction]
) -> tuple[dict[str, int], dict[str, Fraction]]:
    """`count` split by `shares` plus what is owed (`carry`), by largest remainder; and what is owed afterwards.

    Example: shares 1/2 1/3 1/6 of 4 with nothing owed: quotas 2, 1 1/3, 2/3 -> 2, 1, 1 and owed 0, 1/3, -1/3.
    """
    quotas = {name: max(Fraction(0), share * count + carry[name]) for name, share in shares.items()}
    counts = {name: math.floor(quota) for name, quota in quotas.items()}
    # the largest remainder first; a tie goes to the earlier name
    order = sorted(quotas, key=lambda name: counts[name] - quotas[name])
    remaining = count - sum(counts.values())
    for i in range(remaining):
        counts[order[i % len(order)]] += 1
    for _ in range(-remaining):  # several small shares in debt ask for nothing, the others then for more than there is
        counts[max(counts, key=lambda name: counts[name])] -= 1
    return counts, {name: share * count + carry[name] - counts[name] for name, share in shares.items()}


def interleave(counts: Mapping[str, int]) -> list[str]:
    """Names spread evenly over the whole. Example: a 4, b 2 -> a b a a b a."""
    slots = [(Fraction(2 * i + 1, 2 * count), name) for name, count in counts.items() for i in range(count)]
    return [name for _, name in sorted(slots)]


def _exact_shares(sizes: Mapping[str, int], shares: Mapping[str, float] | None, key: str) -> dict[str, Fraction]:
    if shares is None:
        total = sum(sizes.values())
        return {name: Fraction(size, total) for name, size in sizes.items()}
    problems = [
        f"{key}.domain_interleave_probs gives {name} {share}, but no row belongs to it; there is {', '.join(sizes)}"
        for name, share in shares.items()
        if share > 0 and name not in sizes
    ]
    exact = {name: Fraction(str(shares.get(name, 0))) for name in sizes}
    total = sum(exact.values())
    if not problems and (min(exact.values()) < 0 or total == 0):
        problems.append(f"{key}.domain_interleave_probs: {dict(shares)} must be 0 or more, and one above 0")
    if problems:
        raise ConfigError(*problems)
    return {name: share / total for name, share in exact.items()}


# Rows in the order in which they are trained on, and the place in it.


class RowSource:
    """Goes through the rows epoch after epoch; with `shuffle`, in a new order each time. Rows that belong together come
    together. `key` is the YAML path of the data, for messages; `size` rows make an epoch, those beyond are left out of
    it."""

    def __init__(self, rows: Rows, seed: int, shuffle: bool, key: str, size: int | None = None):
        if not len(rows):
            raise ConfigError(f"{key}: there are no rows to train on")
        self.rows = rows
        self._seed, self._shuffle, self._key = seed, shuffle, key
        self._drawn, self._size = 0, len(rows) if size is None else size
        self._contents = _digest(rows)
        self._order: tuple[int, np.ndarray] = (-1, np.empty(0, np.int64))  # epoch, its order

    def next_rows(self, count: int) -> Rows:
        """The next so many rows; they may end one epoch and begin the next."""
        return self.rows.select(self.next_places(count))

    def next_places(self, count: int) -> np.ndarray:
        """Return the rows of the next `count` draws, int64."""
        drawn = np.arange(self._drawn, self._drawn + count)
        self._drawn += count
        return np.array([self._row_at(int(place)) for place in drawn], np.int64)

    @property
    def epochs(self) -> float:
        """How often the rows have been gone through. Example: 30 drawn of 20 rows are 1.5."""
        return self._drawn / self._size

    def state_dict(self) -> dict[str, Any]:
        return {"drawn": self._drawn, "contents": self._contents}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on where the state was taken. Raises ConfigError if the rows are not the same."""
        if state["contents"] != self._contents:
            raise ConfigError(
                f"{self._key}: the rows are not those of the checkpoint, so its position in the data is not valid. "
                "Restore the files and their order, or start over: resume_from_checkpoint: false"
            )
        self._drawn = int(state["drawn"])

    def _row_at(self, place: int) -> int:
        epoch, within = divmod(place, self._size)
        if not self._shuffle:
            return within
        if self._order[0] != epoch:
            random = np.random.default_rng([self._seed, epoch])
            together = self.rows.together
            firsts = together * random.permutation(len(self.rows) // together)
            self._order = epoch, (firsts[:, None] + np.arange(together)).ravel()
        return int(self._order[1][within])


def _digest(rows: Rows) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for name in columns(type(rows)):
        if (values := getattr(rows, name)) is not None:
            digest.update(values.tobytes())
    return digest.hexdigest()
