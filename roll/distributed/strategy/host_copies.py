"""Device memory given back for a while: the contents of tensors wait in host memory, the tensors stay who they are."""

from collections import defaultdict
from collections.abc import Iterable, Iterator

import torch
from torch import nn

from roll.platforms.table import platform_of


class HostCopies:
    """Empties the storages of tensors and fills them again. A tensor keeps its storage object, so its views, the hooks
    autograd has on it and every reference to it hold; `tensor.data = tensor.to("cpu")` would cut all three (a parameter
    that changes its device gets a new gradient accumulator, without the hooks of the old one).

    Copies are made in page-locked memory, which a GPU reads and writes at full speed while the next copy is prepared,
    and kept for the next trip: a trip allocates nothing on the host but in the first round. What is `frozen`, which
    nobody changes, is copied once: its later trips only drop it.
    """

    def __init__(self, frozen: bool = False) -> None:
        self._frozen = frozen
        self._away: dict[int, tuple[torch.UntypedStorage, torch.Tensor]] = {}
        self._known: dict[int, tuple[torch.UntypedStorage, torch.Tensor]] = {}  # of what is frozen, and here
        self._spare: defaultdict[int, list[torch.Tensor]] = defaultdict(list)

    def take(self, tensors: Iterable[torch.Tensor]) -> None:
        """Their storages hold nothing afterwards. What is away already, empty, or shares a storage goes once."""
        taken = []
        for storage in _storages(tensors):
            taken.append(storage)
            if (known := self._known.pop(storage._cdata, None)) is not None:
                self._away[storage._cdata] = known
                continue
            flat = _bytes_of(storage)
            copy = self._host_buffer(len(flat), pinned=platform_of(flat.device).is_accelerator)
            copy.copy_(flat, non_blocking=True)
            self._away[storage._cdata] = (storage, copy)
        _wait_for_copies(taken)
        for storage in taken:
            storage.resize_(0)

    def bring_back(self, tensors: Iterable[torch.Tensor]) -> None:
        """Bring back those of the tensors that are in host memory, with the same values."""
        pairs = (self._away.pop(tensor.untyped_storage()._cdata, None) for tensor in tensors)
        back = [pair for pair in pairs if pair is not None]
        for storage, copy in back:
            storage.resize_(len(copy))
            _bytes_of(storage).copy_(copy, non_blocking=True)
        _wait_for_copies([storage for storage, _ in back])
        for storage, copy in back:
            if self._frozen:
                self._known[storage._cdata] = (storage, copy)
            else:
                self._spare[len(copy)].append(copy)

    def forget(self) -> None:
        """Forget the copies, because a checkpoint or the like has changed frozen tensors: they are copied anew."""
        self._known.clear()

    def _host_buffer(self, num_bytes: int, pinned: bool) -> torch.Tensor:
        spare = self._spare[num_bytes]
        return spare.pop() if spare else torch.empty(num_bytes, dtype=torch.uint8, pin_memory=pinned)


def tensors_of(module: nn.Module) -> Iterator[torch.Tensor]:
    """Yield the tensors that `Module.to` moves."""
    yield from module.parameters()
    yield from module.buffers()


def _storages(tensors: Iterable[torch.Tensor]) -> Iterator[torch.UntypedStorage]:
    """Each once, without empty ones."""
    seen: set[int] = set()
    for tensor in tensors:
        storage = tensor.untyped_storage()
        if storage.nbytes() and storage._cdata not in seen:
            seen.add(storage._cdata)
            yield storage


def _bytes_of(storage: torch.UntypedStorage) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)  # type: ignore[call-overload]


def _wait_for_copies(storages: Iterable[torch.UntypedStorage]) -> None:
    for device in {storage.device for storage in storages}:
        platform_of(device).wait_for_stream(device)
