"""Where a sink's batches go: a target acknowledges a batch by taking it without an error."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import pyarrow as pa

from airflow_provider_rfr.builtins.sinks.window import Window


@dataclass(frozen=True, slots=True)
class Batch:
    """What is sent at once.

    :ivar id: the same when the same rows are sent again after a crash
    :ivar last: whether it ends its window
    :ivar again: how often everything was sent anew before: above 0, rows are declared duplicates
    :ivar token: of the lease; goes up from run to run
    """

    id: str
    sink: str
    window: Window
    rows: pa.Table
    last: bool
    again: int
    token: int


class Sender(Protocol):
    """A target that is open."""

    def send(self, batch: Batch) -> None:
        """Return when the batch is safe at the target; one that is there already is no mistake.

        :raises SinkDeliveryError: it is not, or that can't be told
        """
        ...

    def close(self) -> None:
        """Give back what is held."""
        ...


@dataclass(frozen=True, slots=True)
class HttpTarget:
    """An HTTP endpoint, its connection resolved; ``repr`` shows none of it.

    :ivar url: of the connection; the sink's ``path`` comes behind it
    :ivar headers: sent with each request, e.g. ``Authorization``
    :ivar timeout: seconds for connecting, and for each wait for an answer
    :ivar patience: seconds for which a batch is tried again where that may help
    :ivar verify: whether certificates are checked, or the file of those that are trusted
    """

    url: str = field(repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    timeout: float = 30.0
    patience: float = 60.0
    verify: bool | str = True


@dataclass(frozen=True, slots=True)
class FilesTarget:
    """How a file system is opened.

    :ivar options: fsspec's, for the protocol of the sink's path; they may hold secrets
    """

    options: Mapping[str, Any] = field(default_factory=dict, repr=False)
