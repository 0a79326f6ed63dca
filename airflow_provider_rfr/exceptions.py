"""Every error this package raises on purpose. Whether a retry may help, and what to do, is said by each class.

The tree is drawn in ``docs/architecture.md``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

EXIT_FAILED, EXIT_CONFIGURATION, EXIT_FENCED = 1, 2, 3


class RfrError(Exception):
    """Base of all errors of this package. What an error means is an attribute of its class, and of nothing else.

    :cvar retryable: whether another try may end otherwise, with nothing changed by hand
    :cvar refuses_generation: of an error of the publish: whether the same rows would meet it again, so that the next
        run has to read them again
    :cvar excused: whether an attempt that ends with it was not let read, so that it is not blamed for no progress
    :cvar exit_code: that an application ends with
    :cvar outcome: what the history calls such an end
    :cvar advice: what to do, where the message does not say so itself
    """

    retryable: ClassVar[bool] = True
    refuses_generation: ClassVar[bool] = False
    excused: ClassVar[bool] = False
    exit_code: ClassVar[int] = EXIT_FAILED
    outcome: ClassVar[str] = "failed"
    advice: ClassVar[str] = ""

    def __reduce__(self) -> tuple[Any, ...]:
        # An error crosses from an executor to the driver. Exception's own way calls __init__ with the message alone.
        return _rebuild, (type(self), self.args, self.__dict__)


def _rebuild(kind: type[Exception], arguments: tuple[Any, ...], attributes: Mapping[str, Any]) -> Exception:
    error = kind.__new__(kind, *arguments)
    error.__dict__.update(attributes)
    return error


class ConfigurationError(RfrError):
    """A setting is wrong.

    :ivar field: dotted name of the setting
    :ivar problem: what is wrong with it
    :ivar remedy: what to write instead
    """

    retryable = False
    refuses_generation = True
    exit_code = EXIT_CONFIGURATION
    advice = "correct it and clear the task"

    def __init__(self, field: str, problem: str, remedy: str = "") -> None:
        self.field = field
        self.problem = problem
        self.remedy = remedy
        super().__init__(f"{field}: {problem}" + (f"; {remedy}" if remedy else ""))


class PreflightError(RfrError):
    """The machine lacks something; the message says what to install or set."""

    retryable = False
    exit_code = EXIT_CONFIGURATION


@dataclass(frozen=True, slots=True)
class DeclarationProblem:
    """One thing wrong in what is declared.

    :ivar place: file and line, or words where there is no file
    :ivar name: the object; empty where it is not known, or where it is about none
    :ivar problem: what is wrong
    :ivar remedy: what to write instead
    """

    place: str
    name: str
    problem: str
    remedy: str = ""

    def __str__(self) -> str:
        told = ": ".join(part for part in (self.place, self.name, self.problem) if part)
        return told + (f"; {self.remedy}" if self.remedy else "")


class DeclarationError(RfrError):
    """What is declared is wrong.

    :ivar problems: all of them, sorted by place
    """

    def __init__(self, problems: Sequence[DeclarationProblem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(map(str, self.problems)))


class QueryError(ConfigurationError):
    """A query is not one that a view can have, or can't be understood well enough to be kept up to date."""

    def __init__(self, problem: str, remedy: str = "") -> None:
        super().__init__("query", problem, remedy)


class UnreadableQueryError(QueryError):
    """A query can't be parsed here; Spark may understand it all the same."""


class PlanError(RfrError):
    """No plan can be made, or what was saved is none."""


class StalePlanError(PlanError):
    """The plan was made from a state that is no longer the present one."""

    retryable = False


class BlockedPlanError(PlanError):
    """Something stops the plan; nothing was done.

    :ivar problems: everything that stops it, by object
    """

    retryable = False

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        super().__init__(f"the plan is blocked, nothing was done: {'; '.join(self.problems)}")


class DeployError(RfrError):
    """A deploy could not be finished; what is done stays done, and the next one goes on from there."""


class StepError(DeployError):
    """A step of a deploy failed.

    :ivar object: name of the object
    :ivar action: the step's verb
    :ivar problem: what went wrong
    :ivar remedy: what to do about it
    """

    def __init__(self, object: str, action: str, problem: str, remedy: str = "") -> None:
        self.object = object
        self.action = action
        self.problem = problem
        self.remedy = remedy
        super().__init__(f"{action} {object}: {problem}" + (f"; {remedy}" if remedy else ""))


class DeployBusyError(DeployError):
    """Somebody else is deploying the same project.

    :ivar holder: who
    :ivar token: of their lease, for ``force_unlock``
    """

    def __init__(self, project: str, holder: str, token: int) -> None:
        self.project = project
        self.holder = holder
        self.token = token
        super().__init__(
            f"project {project} is being deployed by {holder}; wait for it, "
            f"or, if that process is dead, force-unlock with token {token}"
        )


class LeaseLostError(DeployError):
    """Another deploy took over; this one must not write any more.

    :ivar token: ours
    :ivar newer_token: the one that took over
    """

    def __init__(self, project: str, token: int, newer_token: int) -> None:
        self.project = project
        self.token = token
        self.newer_token = newer_token
        super().__init__(f"the lease on project {project} is no longer ours: token {token}, now {newer_token}")


class StatementError(ConfigurationError):
    """A statement can't be read.

    :ivar line: where, from 1
    :ivar column: ... and from 1
    """

    def __init__(self, problem: str, line: int, column: int, remedy: str = "") -> None:
        self.line = line
        self.column = column
        super().__init__(f"line {line}, column {column}", problem, remedy)


@dataclass(frozen=True, slots=True)
class AlterationProblem:
    """One thing wrong in what is to be changed.

    :ivar option: e.g. ``extra.sslmode``; empty for the connection as a whole
    :ivar problem: what is wrong, without values of secrets
    :ivar remedy: what to write instead
    :ivar line: where in the statement, from 1; 0 where it came from Python, or from no place
    :ivar column: ... and from 1
    """

    option: str
    problem: str
    remedy: str = ""
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        place = f"line {self.line}, column {self.column}" if self.line else ""
        told = ": ".join(part for part in (place, self.option, self.problem) if part)
        return told + (f"; {self.remedy}" if self.remedy else "")


class AlterConnectionError(RfrError):
    """A connection was not altered, and is as it was.

    :ivar connection: its id
    """

    def __init__(self, connection: str, message: str) -> None:
        self.connection = connection
        self.message = message
        super().__init__(f"connection {connection}: {message}")


class AlterationRefusedError(AlterConnectionError):
    """What is to be changed is wrong, or something that uses the connection can't adopt it.

    :ivar problems: all of them, in the statement's order
    """

    retryable = False

    def __init__(self, connection: str, problems: Sequence[AlterationProblem]) -> None:
        self.problems = tuple(problems)
        super().__init__(connection, "\n".join(map(str, self.problems)))


class ConnectionNotFoundError(AlterConnectionError):
    """There is no such connection."""

    retryable = False


class ConnectionShadowedError(AlterConnectionError):
    """What is used comes from a place that can't be written; editing the database would change nothing."""

    retryable = False


class ConnectionRightsError(AlterConnectionError):
    """The caller lacks a right; nothing was read that needs it."""

    retryable = False


class ConnectionValidationError(AlterConnectionError):
    """The new settings do not work, or lead to another upstream."""


class ConnectionConflictError(AlterConnectionError):
    """Somebody else alters the connection, or just did: try again, from what it is now."""


class SchemaError(RfrError):
    """Rows, declared schema and table don't fit together."""

    retryable = False
    refuses_generation = True
    advice = "correct it and clear the task: pages are fetched again only where a transformation or the source changed"


class TypeMismatchError(SchemaError):
    """Values don't fit their columns.

    :ivar offenders: the first of them: partition, page, record, column, value, expected
    """

    def __init__(self, message: str, offenders: Sequence[Mapping[str, Any]] = ()) -> None:
        self.message = message
        self.offenders = tuple(offenders)
        super().__init__(message)


class SchemaEvolutionError(SchemaError):
    """The published table can't take the new schema."""


class LedgerError(RfrError):
    """The ledger refuses what was asked."""


class FencedError(LedgerError):
    """A newer attempt took the refresh over; this one must not write any more.

    :ivar epoch: ours
    :ivar newer_epoch: the one that took over
    """

    retryable = False
    exit_code = EXIT_FENCED
    outcome = "fenced"
    advice = "another run refreshes this table; let it finish"

    def __init__(self, message: str, *, epoch: int, newer_epoch: int) -> None:
        self.message = message
        self.epoch = epoch
        self.newer_epoch = newer_epoch
        super().__init__(message)


class ReconciliationError(LedgerError):
    """Fetched, staged and published counts differ; nothing was published."""

    refuses_generation = True


class PublishRefusedError(RfrError):
    """A guard stopped the publish; readers keep the old table, the ledger keeps the new rows."""

    retryable = False
    refuses_generation = True
    advice = "if the source is right, relax allow_empty or max_shrink and clear the task"


class RefreshBusyError(RfrError):
    """Another run is at the same refresh; nothing was read or written."""

    excused = True


class CatalogError(RfrError):
    """The lake's catalog does not answer, or refuses; the message names it, without its password."""


class SparkJobError(RfrError):
    """Spark could not start or finish a job; the message is its cause, not the Java stack."""


class RefreshStoppedError(RfrError):
    """The refresh was told to stop; what was read is committed and the next attempt goes on."""

    excused = True
    outcome = "stopped"


class RefreshFailedError(RfrError):
    """Some partitions could not be read; the others were, and are kept.

    :ivar failures: partition key to reason
    """

    def __init__(self, message: str, failures: Mapping[str, str] | None = None) -> None:
        self.message = message
        self.failures = dict(failures or {})
        super().__init__(message)


class SinkError(RfrError):
    """A sink can't go on. Its cursor is where it was; nothing that was acknowledged is sent again."""

    def __init__(self, sink: str, problem: str, remedy: str = "") -> None:
        self.sink = sink
        self.problem = problem
        self.remedy = remedy
        super().__init__(f"sink {sink}: {problem}" + (f"; {remedy}" if remedy else ""))


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


class SourceDefinitionError(ConfigurationError):
    """A source definition is wrong.

    :ivar file: the document, or None for an inline definition
    :ivar path: place in the document, e.g. ``streams.orders.paginator.type``
    """

    def __init__(self, path: str, problem: str, remedy: str = "", file: str | None = None) -> None:
        self.path = path
        self.file = file
        super().__init__(f"{file}: {path}" if file else path, problem, remedy)


class SourceError(RfrError):
    """The API answered with an error, or did not answer.

    :ivar status: HTTP status, None without an answer
    :ivar request: method and address without credentials
    :ivar partition: canonical key of the partition, once known
    :ivar page: number of the page in its chain, from 1, once known
    """

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        request: str | None = None,
        partition: str | None = None,
        page: int | None = None,
    ) -> None:
        self.message = message
        self.status = status
        self.request = request
        self.partition = partition
        self.page = page
        super().__init__(message)

    @property
    def told(self) -> str:
        """Message and request, without the place."""
        return f"{self.message} [{self.request}]" if self.request else self.message

    def __str__(self) -> str:
        place = f" (partition {self.partition}, page {self.page})" if self.partition is not None else ""
        return f"{self.told}{place}"


class AuthenticationError(SourceError):
    """The API does not accept the credentials."""

    retryable = False
    advice = "check the credentials and clear the task: it goes on where it stopped"


class RateLimitedError(SourceError):
    """The API asks for a longer wait than the refresh may spend.

    :ivar retry_after: seconds to wait
    """

    excused = True

    def __init__(self, message: str, *, retry_after: float, **context: Any) -> None:
        super().__init__(message, **context)
        self.retry_after = retry_after


class TokenExpiredError(SourceError):
    """The API no longer accepts the page token; the chain starts again."""


class RepeatedPageError(SourceError):
    """A token or a page's content came twice in one chain."""


class SourceChangedError(RfrError):
    """A committed page reads differently now, and ``on_source_change`` is ``fail``."""

    retryable = False
    advice = "set on_source_change to restart or accept, and clear the task"


class ReadInterrupted(Exception):
    """The reader was asked to stop before this page was complete; nothing of it counts."""


class BackoffInterrupted(ReadInterrupted):
    """The reader waited to repeat a request that had failed; what that request may still spend must not start anew."""


class TemplateError(RfrError):
    """A template can't be read or rendered. It names variables and never says what they hold.

    :ivar problem: what is wrong, and what to write instead
    :ivar line: where in the template, from 1
    :ivar column: ... and from 1
    """

    def __init__(self, problem: str, line: int, column: int) -> None:
        self.problem = problem
        self.line = line
        self.column = column
        super().__init__(f"line {line}, column {column}: {problem}")


@dataclass(frozen=True, slots=True)
class TriggerProblem:
    """One thing wrong in a triggers block.

    :ivar trigger: name of the endpoint; empty for the block as a whole
    :ivar path: place in the endpoint, e.g. ``retry.maxElapsed``; empty for the endpoint as a whole
    :ivar problem: what is wrong, without values that may be secret
    :ivar remedy: what to write instead
    """

    trigger: str
    path: str
    problem: str
    remedy: str = ""

    def __str__(self) -> str:
        place = ": ".join(
            part for part in (f"trigger {self.trigger}" if self.trigger else "triggers", self.path) if part
        )
        return f"{place}: {self.problem}" + (f"; {self.remedy}" if self.remedy else "")


class TriggerConfigError(RfrError):
    """A triggers block is wrong.

    :ivar problems: all of them, in the block's order
    """

    def __init__(self, problems: Sequence[TriggerProblem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(map(str, self.problems)))


class SealError(RfrError):
    """A sealed document can't be opened, or is not as it was sealed; the message holds nothing of what is sealed."""


class DeliveryError(RfrError):
    """Webhooks could not be delivered; the message names triggers and hosts, never a path or a secret."""
