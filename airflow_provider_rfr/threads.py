"""Work in daemon threads, which Python does not wait for at its end.

Many clients of catalogs and databases wait for ever for a server that accepts connections and says nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from functools import partial
from threading import Thread
from typing import Final, TypeVar

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

_PARALLEL: Final = 8


def within(seconds: float, work: Callable[[], _Result]) -> _Result:
    """Return or raise the result of ``work``. Its thread is left behind where it does not end.

    :raises TimeoutError: it takes longer
    """
    result: Future[_Result] = Future()
    Thread(target=_settle, args=(result, work), daemon=True).start()
    if not wait([result], seconds).done:
        raise TimeoutError(f"no answer within {seconds:g} s")
    return result.result()


def in_threads(work: Callable[[_Item], _Result], items: Sequence[_Item]) -> list[_Result]:
    """Call ``work`` for each item, eight at a time; return the results in the order of the items.

    :raises BaseException: the first one that ``work`` raises
    """
    results: list[Future[_Result]] = [Future() for _ in items]
    waiting = iter(list(zip(items, results, strict=True)))

    def settle_all() -> None:
        for item, result in waiting:
            _settle(result, partial(work, item))

    for _ in range(min(_PARALLEL, len(items))):
        Thread(target=settle_all, daemon=True).start()
    return [result.result() for result in results]


def _settle(result: Future[_Result], work: Callable[[], _Result]) -> None:
    try:
        result.set_result(work())
    except BaseException as error:  # noqa: BLE001 - raised where it is waited for
        result.set_exception(error)
