"""Errors of exports."""

from __future__ import annotations

from airflow_provider_rfr.exceptions.base import RfrError, rebuild


class SinkError(RfrError):
    """A sink can't go on. Its cursor is where it was; nothing that was acknowledged is sent again."""

    def __init__(self, sink: str, problem: str, remedy: str = "") -> None:
        self.sink = sink
        self.problem = problem
        self.remedy = remedy
        super().__init__(f"sink {sink}: {problem}" + (f"; {remedy}" if remedy else ""))

    def __reduce__(self) -> tuple[object, ...]:
        return rebuild, (type(self), str(self), dict(self.__dict__))


class SinkHeldError(SinkError):
    """Its source was replaced, and somebody has to decide what becomes of it."""

    retryable = False


class CursorExpiredError(SinkError):
    """Snapshots that it has not sent are gone. Which rows they brought can't be known any more."""

    retryable = False


class SinkDeliveryError(SinkError):
    """The target did not acknowledge a batch; the next run sends it again with the same id."""


class SinkBusyError(SinkError):
    """Another run is at it."""

    def __init__(self, sink: str, owner: str, milliseconds: int) -> None:
        seconds = max(1, milliseconds // 1000)
        super().__init__(sink, f"{owner} is at it, for up to {seconds} s more", "run it again later")


class SinkLeaseLostError(SinkError):
    """Another run, or a deploy, took the sink over while this run was at it; this run moved nothing after that."""

    def __init__(self, sink: str) -> None:
        super().__init__(sink, "another run or a deploy took it over", "run it again")


class SnapshotsExpiredError(RfrError):
    """Snapshots between two of a table's main line are gone, or the earlier one is not on the main line any more."""
