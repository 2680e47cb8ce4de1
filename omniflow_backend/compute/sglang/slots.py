"""Which request holds which row and which KV slots, over SGLang's own pools."""

from __future__ import annotations

from typing import Any

import torch


class SlotPool:
    """Rows of the request-to-token map, and KV slots, for the running requests.

    A row's first ``length`` entries name the slots of that request's tokens, in order: the map is the only record of
    who holds what. A request reserves, when it is admitted, the slots it can need at most; so a running request never
    waits for a slot and is never thrown out. ``acquire`` and ``release`` come in pairs; ``extend`` in between.
    """

    def __init__(self, runner: Any) -> None:
        self._allocator = runner.token_to_kv_pool_allocator
        self._rows = runner.req_to_token_pool
        self.total_slots: int = self._allocator.available_size()
        self.total_rows: int = self._rows.available_size()
        self.reserved_slots = 0

    @property
    def free_slots(self) -> int:
        return int(self._allocator.available_size())

    @property
    def free_rows(self) -> int:
        return int(self._rows.available_size())

    def acquire(self, slots: int) -> int | None:
        """Reserve ``slots`` and a row for one request; ``None`` when they do not fit now."""
        if self.free_rows == 0 or self.reserved_slots + slots > self.total_slots:
            return None
        self.reserved_slots += slots
        return int(self._rows.alloc_rows(1)[0])

    def extend(self, row: int, start: int, count: int) -> torch.Tensor:
        """Take ``count`` slots for the tokens at ``start`` and after of a row; int64 ``[count]``."""
        slots = self._allocator.alloc(count)
        if slots is None:
            raise RuntimeError(f"no free KV slot although {self.reserved_slots} of {self.total_slots} are reserved")
        self._rows.write((row, slice(start, start + count)), slots.to(torch.int32))
        return torch.as_tensor(slots)

    def release(self, row: int, length: int, reserved: int) -> None:
        """Return a request's ``length`` slots, its row and its reservation."""
        self._allocator.free(self._rows.req_to_token[row, :length].to(torch.int64))
        self._rows.free_rows([row])
        self.reserved_slots -= reserved
