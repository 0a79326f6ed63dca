"""A bounded cache of what is made from text, for all threads."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class TextCache(Generic[T]):
    """What ``make`` makes of a text, kept while it is among those that were asked for last.

    Two threads that ask at once may both make it; one result is kept. Failures are not kept.

    :ivar entries: how many are kept
    :ivar characters: how long their texts are together; a longer text alone is made and not kept
    """

    def __init__(self, make: Callable[[str], T], *, entries: int, characters: int) -> None:
        self._make = make
        self._entries = entries
        self._characters = characters
        self._kept: OrderedDict[str, T] = OrderedDict()
        self._size = 0
        self._lock = threading.Lock()

    def get(self, text: str) -> T:
        with self._lock:
            if text in self._kept:
                self._kept.move_to_end(text)
                return self._kept[text]
        made = self._make(text)
        with self._lock:
            if text in self._kept:
                return self._kept[text]
            self._kept[text] = made
            self._size += len(text)
            while self._kept and (len(self._kept) > self._entries or self._size > self._characters):
                dropped, _ = self._kept.popitem(last=False)
                self._size -= len(dropped)
        return made

    def __len__(self) -> int:
        return len(self._kept)
