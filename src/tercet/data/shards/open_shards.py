"""Open shards of a prepared folder: mapped, verified, and limited in number.

Readers get a map of an open file, never a path: the system keeps the content of a file until it is closed everywhere,
so another reader may remove the path at any time. A thread opens the next shards in advance, so that a training step
does not wait for them to be fetched or hashed.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress

import numpy as np

from tercet.config import UserError


class OpenShards:
    """Ids of the open shards, by shard name."""

    def __init__(self, open_ids: Callable[[str], np.ndarray], close: Callable[[str], object], *, max_open: int) -> None:
        """Initialize without open shards.

        Args:
            open_ids: Function that opens the shard with the name that it receives, and returns its ids (N,).
            close: Function called with the name of each shard that is closed.
            max_open: Maximum number of open shards.
        """
        self._open_ids, self._close, self._max_open = open_ids, close, max_open
        self._ids = OrderedDict[str, np.ndarray]()  # least recently used shard first
        self._requested: dict[str, None] = {}  # names passed to the last `keep`, in their order
        self._opening = dict[str, threading.Lock]()
        self._lock, self._thread, self._is_opening_ahead = threading.Lock(), threading.Thread(), False

    def ids(self, name: str) -> np.ndarray:
        """Return the ids (N,) of a shard, which is opened if necessary.

        Raises:
            UserError: If the shard cannot be opened.
        """
        with self._lock:
            opening = self._opening.setdefault(name, threading.Lock())
        with opening:  # prevents two threads from fetching or hashing the same shard
            ids = self._ids.get(name)
            if ids is None:
                ids = self._open_ids(name)
            with self._lock:
                self._ids[name] = ids
                self._ids.move_to_end(name)
                self._close_excess()
        return ids

    def keep(self, names: Sequence[str]) -> None:
        """Close all shards except the named ones, and open the missing ones in a thread."""
        with self._lock:
            if list(names) == list(self._requested):
                return
            self._requested = dict.fromkeys(names)
            for name in [name for name in self._ids if name not in self._requested]:
                self._remove(name)
            if not self._is_opening_ahead and any(name not in self._ids for name in names):
                self._is_opening_ahead = True
                self._thread = threading.Thread(target=self._open_ahead, daemon=True)
                self._thread.start()

    def wait(self) -> None:
        """Wait until the thread has opened the shards of the last `keep`."""
        if self._thread.ident is not None:
            self._thread.join()

    def _open_ahead(self) -> None:
        processed: dict[str, None] = {}
        while True:
            with self._lock:
                requested = self._requested
                if requested is processed:
                    self._is_opening_ahead = False
                    return
            for name in requested:
                if name in self._requested and name not in self._ids:
                    with suppress(UserError):  # raised again in the reader's thread
                        self.ids(name)
            processed = requested

    def _close_excess(self) -> None:
        """Close shards until `max_open` are left: first those not passed to `keep`, the least recently used first."""
        if (excess := len(self._ids) - self._max_open) > 0:
            for name in sorted(self._ids, key=lambda name: name in self._requested)[:excess]:  # stable sort
                self._remove(name)

    def _remove(self, name: str) -> None:
        del self._ids[name]
        self._close(name)
