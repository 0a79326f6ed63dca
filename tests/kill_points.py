"""Places in a program at which a test lets its process die, or something else happen."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pytest


def die(*args: Any, **kwargs: Any) -> None:
    """Kill this process as the kernel would: no handler, no finally."""
    os.kill(os.getpid(), signal.SIGKILL)


def intercept(
    owner: Any,
    name: str,
    *,
    before: Callable[..., object] | None = None,
    after: Callable[..., object] | None = None,
    put: Callable[[Any, str, Any], None] = setattr,
) -> None:
    """Call *before* and *after* with the arguments of each call of a function.

    :param owner: the module or class that has the function as *name*
    :param put: replaces it, for good unless it is a :class:`pytest.MonkeyPatch`'s
    """
    original = getattr(owner, name)

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        if before is not None:
            before(*args, **kwargs)
        result = original(*args, **kwargs)
        if after is not None:
            after(*args, **kwargs)
        return result

    put(owner, name, wrapped)


def meanwhile(patch: pytest.MonkeyPatch, owner: Any, name: str, work: Callable[[], object]) -> None:
    """Do the work right before the first call of a function."""
    todo = [work]

    def once(*args: Any, **kwargs: Any) -> None:
        while todo:
            todo.pop()()

    intercept(owner, name, before=once, put=patch.setattr)
