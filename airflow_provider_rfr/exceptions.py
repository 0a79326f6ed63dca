"""The errors of this package. Each class says whether a retry may help, and how to fix the cause.

``docs/reference/troubleshooting.md`` lists them with examples of their messages.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_provider_rfr.text import page_place

if TYPE_CHECKING:
    from typing_extensions import Self

EXIT_FAILED, EXIT_CONFIGURATION, EXIT_FENCED = 1, 2, 3


class RfrError(Exception):
    """Base class of all errors of this package. The attributes of the class alone decide how an error is handled.

    :cvar retryable: whether a retry may succeed without a manual change
    :cvar refuses_generation: for an error of the publish: whether the same rows would cause it again, so that the next
        run has to read them again
    :cvar excused: whether an attempt that ends with it was kept from reading, and so does not count as one without
        progress
    :cvar exit_code: exit code of an application that fails with it
    :cvar outcome: outcome of an attempt that ends with it, as the history records it
    :cvar advice: remedy, if the message does not have one
    """

    retryable: ClassVar[bool] = True
    refuses_generation: ClassVar[bool] = False
    excused: ClassVar[bool] = False
    exit_code: ClassVar[int] = EXIT_FAILED
    outcome: ClassVar[str] = "failed"
    advice: ClassVar[str] = ""

    def __reduce__(self) -> tuple[Any, ...]:
        # Errors are pickled from executor to driver. By default, unpickling calls __init__ with the message alone.
        return _rebuild, (type(self), self.args, self.__dict__)


def _rebuild(kind: type[Exception], arguments: tuple[Any, ...], attributes: Mapping[str, Any]) -> Exception:
    error = kind.__new__(kind, *arguments)
    error.__dict__.update(attributes)
    return error


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake in a user's input.

    :ivar field: dotted name of the setting, or name of the object; empty if the problem concerns the whole input
    :ivar problem: what is wrong, without values that may be secret
    :ivar remedy: what to write instead
    :ivar place: location of the input, e.g. a file and a line; empty if it is not known
    """

    field: str
    problem: str
    remedy: str = ""
    place: str = ""

    def __str__(self) -> str:
        text = ": ".join(part for part in (self.place, self.field, self.problem) if part)
        return f"{text}; {self.remedy}" if self.remedy else text


class ConfigurationError(RfrError):
    """A user's input is wrong.

    :ivar problems: every problem; ``field``, ``problem``, ``remedy`` and ``place`` are those of the first one
    """

    retryable = False
    refuses_generation = True
    exit_code = EXIT_CONFIGURATION
    advice = "correct it and clear the task"
    problems: tuple[Problem, ...]

    def __init__(self, field: str, problem: str, remedy: str = "", place: str = "") -> None:
        self.problems = (Problem(field, problem, remedy, place),)
        super().__init__(str(self.problems[0]))

    @classmethod
    def of(cls, problems: Iterable[Problem]) -> Self:
        """Return one error for several problems, each on a line of its own.

        :param problems: at least one
        """
        all_problems = tuple(problems)
        # Not by __init__, whose arguments differ between the subclasses.
        error = cls.__new__(cls, "\n".join(map(str, all_problems)))
        error.problems = all_problems
        return error

    def at(self, place: str) -> Self:
        """Return a copy of the error in which each problem has this place."""
        return self.of(replace(problem, place=place) for problem in self.problems)

    def inside(self, place: str) -> Self:
        """Return a copy of the error in which this place precedes the place of each problem."""
        places = (": ".join(filter(None, (place, problem.place))) for problem in self.problems)
        return self.of(replace(problem, place=whole) for problem, whole in zip(self.problems, places, strict=True))

    @property
    def field(self) -> str:
        return self.problems[0].field

    @property
    def problem(self) -> str:
        return self.problems[0].problem

    @property
    def remedy(self) -> str:
        return self.problems[0].remedy

    @property
    def place(self) -> str:
        return self.problems[0].place


class StoreUnreachableError(ConfigurationError):
    """The control store does not answer; either its address is wrong, or a later try reaches it."""

    retryable = True
    refuses_generation = False
    exit_code = EXIT_FAILED
    advice = ""


class PreflightError(RfrError):
    """The machine lacks a requirement of a refresh; the message names the program or setting that is missing."""

    retryable = False
    exit_code = EXIT_CONFIGURATION


class DeclarationError(ConfigurationError):
    """The declarations of built-in objects are wrong; all problems are named, sorted by place."""


class QueryError(ConfigurationError):
    """A query that a view can't have, or that can't be analysed well enough to keep the view up to date."""

    def __init__(self, problem: str, remedy: str = "") -> None:
        super().__init__("query", problem, remedy)


class UnreadableQueryError(QueryError):
    """A query can't be parsed here; Spark may still accept it."""


class PlanError(RfrError):
    """No plan can be made, or a saved one can't be read."""


class StalePlanError(PlanError):
    """The plan was made from a state that has changed since."""

    retryable = False


class BlockedPlanError(PlanError):
    """The plan is blocked; nothing was done.

    :ivar problems: every problem that blocks the plan, with the name of its object
    """

    retryable = False

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        super().__init__(f"the plan is blocked, nothing was done: {'; '.join(self.problems)}")


class DeployError(RfrError):
    """A deploy could not be finished; the finished steps stay, and the next one continues from there."""


class StepError(DeployError):
    """A step of a deploy failed, or the refresh of a materialized view.

    :ivar object: name of the object
    :ivar action: action of the step, or ``refresh``
    :ivar problem: what went wrong
    :ivar remedy: what to do about it
    """

    def __init__(self, object: str, action: str, problem: str, remedy: str = "") -> None:
        self.object = object
        self.action = action
        self.problem = problem
        self.remedy = remedy
        super().__init__(str(Problem(f"{action} {object}", problem, remedy)))


class DeployBusyError(DeployError):
    """Another deploy of the same project is running.

    :ivar holder: holder of the lease
    :ivar token: token of the lease, for ``force_unlock``
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

    :ivar token: lease token of this deploy
    :ivar newer_token: lease token of the deploy that took over
    """

    def __init__(self, project: str, token: int, newer_token: int) -> None:
        self.project = project
        self.token = token
        self.newer_token = newer_token
        super().__init__(f"the lease on project {project} was taken over: token {token}, now {newer_token}")


class StatementError(ConfigurationError):
    """A statement can't be parsed.

    :ivar line: line of the mistake, from 1
    :ivar column: column of the mistake, from 1
    """

    def __init__(self, problem: str, line: int, column: int, remedy: str = "") -> None:
        self.line = line
        self.column = column
        super().__init__("", problem, remedy, f"line {line}, column {column}")


class AlterConnectionError(RfrError):
    """A connection was neither altered nor dropped, and is as it was.

    :ivar connection: its id
    """

    def __init__(self, connection: str, message: str) -> None:
        self.connection = connection
        self.message = message
        super().__init__(f"connection {connection}: {message}")


class AlterationRefusedError(AlterConnectionError):
    """The alteration is wrong, or something that uses the connection can't adopt it, or do without it.

    :ivar problems: every problem, in the order of the statement
    """

    retryable = False

    def __init__(self, connection: str, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__(connection, "\n".join(map(str, self.problems)))


class ConnectionNotFoundError(AlterConnectionError):
    """The connection does not exist."""

    retryable = False


class ConnectionShadowedError(AlterConnectionError):
    """The connection in use comes from a place that can't be written, so a change in the database has no effect."""

    retryable = False


class ConnectionRightsError(AlterConnectionError):
    """The caller lacks a permission; nothing that needs it was read."""

    retryable = False


class ConnectionValidationError(AlterConnectionError):
    """The new settings do not work, or lead to another upstream."""


class ConnectionConflictError(AlterConnectionError):
    """Another alteration of the connection is running, or just ended; a retry starts from its result."""


class SchemaError(RfrError):
    """Rows, declared schema and table don't fit together."""

    retryable = False
    refuses_generation = True
    advice = "correct it and clear the task: pages are fetched again only where a transformation or the source changed"


class TypeMismatchError(SchemaError):
    """Values don't fit their columns.

    :ivar offenders: the first of these values, each with partition, page, record, column, value and expected type
    """

    def __init__(self, message: str, offenders: Sequence[Mapping[str, Any]] = ()) -> None:
        self.offenders = tuple(offenders)
        super().__init__(message)


class SchemaEvolutionError(SchemaError):
    """The published table can't take the new schema."""


class LedgerError(RfrError):
    """The ledger refuses the operation."""


class FencedError(LedgerError):
    """A newer attempt took the refresh over; this one must not write any more.

    :ivar epoch: epoch of this attempt
    :ivar newer_epoch: epoch of the attempt that took over
    """

    retryable = False
    exit_code = EXIT_FENCED
    outcome = "fenced"
    advice = "another run refreshes this table; let it finish"

    def __init__(self, message: str, *, epoch: int, newer_epoch: int) -> None:
        self.epoch = epoch
        self.newer_epoch = newer_epoch
        super().__init__(message)


class DamagedLedgerError(LedgerError):
    """A file that the ledger's newest commit names is missing. No retry helps: drop the ledger."""

    retryable = False


class SyncStateError(RfrError):
    """The state of an incremental sync can't be continued; a full refresh writes a new one."""

    retryable = False
    advice = "run once with full_refresh: true, or set a state with airflow rfr refresh state set"


class ReconciliationError(LedgerError):
    """Fetched, staged and published counts differ; nothing was published."""

    refuses_generation = True


class PublishRefusedError(RfrError):
    """A guard stopped the publish; readers keep the old table, the ledger keeps the new rows."""

    retryable = False
    refuses_generation = True
    advice = "if the source is right, relax the option that the message names and clear the task"


class RefreshBusyError(RfrError):
    """Another run is working on the same refresh; nothing was read or written."""

    excused = True


class CatalogError(RfrError):
    """The lake's catalog does not answer, or refuses; the message names it without its password."""


class SparkJobError(RfrError):
    """Spark could not start or finish a job; the message is its cause, not the Java stack."""


class RefreshStoppedError(RfrError):
    """The refresh was asked to stop; the pages that were read are committed, and the next attempt continues."""

    excused = True
    outcome = "stopped"


class RefreshFailedError(RfrError):
    """Some partitions could not be read; the others were, and are kept.

    :ivar failures: partition key to reason
    """

    def __init__(self, message: str, failures: Mapping[str, str] | None = None) -> None:
        self.failures = dict(failures or {})
        super().__init__(message)


class SinkError(RfrError):
    """A sink can't continue. Its cursor stays behind the rows that were acknowledged, which are not sent again."""

    def __init__(self, sink: str, problem: str, remedy: str = "") -> None:
        self.sink = sink
        self.problem = problem
        self.remedy = remedy
        super().__init__(str(Problem(f"sink {sink}", problem, remedy)))


class SinkHeldError(SinkError):
    """The sink's source was replaced, and a user has to decide how the sink continues."""

    retryable = False


class CursorExpiredError(SinkError):
    """Snapshots that the sink has not sent are expired, and their rows can't be determined any more."""

    retryable = False


class SinkDeliveryError(SinkError):
    """The target did not acknowledge a batch; the next run sends it again with the same id."""


class SinkBusyError(SinkError):
    """Another run is exporting this sink."""

    def __init__(self, sink: str, owner: str, milliseconds: int) -> None:
        seconds = max(1, milliseconds // 1000)
        super().__init__(sink, f"{owner} holds its lease for up to {seconds} s more", "run it again later")


class SinkLeaseLostError(SinkError):
    """Another run, or a deploy, took the sink over; this run has not moved the cursor since."""

    def __init__(self, sink: str) -> None:
        super().__init__(sink, "another run or a deploy took it over", "run it again")


class SnapshotsExpiredError(RfrError):
    """Snapshots between two of a table's main branch are expired, or the earlier one is no longer on that branch."""


class SourceDefinitionError(ConfigurationError):
    """A source's definition is wrong; each problem's field is a path such as ``streams.orders.paginator.type``."""


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
    def description(self) -> str:
        """Return the message and the request, without partition and page."""
        return f"{self.message} [{self.request}]" if self.request else self.message

    def __str__(self) -> str:
        place = "" if self.partition is None else page_place(self.partition, self.page, start=" (", end=")")
        return f"{self.description}{place}"


class AuthenticationError(SourceError):
    """The API does not accept the credentials."""

    retryable = False
    advice = "check the credentials and clear the task: it continues where it stopped"


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


class SecretInTokenError(SourceError):
    """The next page's token has a secret, and it would be stored in the ledger."""

    retryable = False
    advice = "page in another way, and clear the task: it reads again from the first page"


class SourceChangedError(RfrError):
    """A committed page has other content now, and ``on_source_change`` is ``fail``."""

    retryable = False
    advice = "set on_source_change to restart or accept, and clear the task"


class ReadInterrupted(Exception):
    """The reader was asked to stop before this page was complete; nothing of it counts."""


class BackoffInterrupted(ReadInterrupted):
    """The reader was stopped while it waited to repeat a request, whose time budget must not start again."""


class TemplateError(RfrError):
    """A template can't be parsed or rendered. The message names variables, never their values.

    :ivar problem: what is wrong, and what to write instead
    :ivar line: line in the template, from 1
    :ivar column: column in the template, from 1
    """

    def __init__(self, problem: str, line: int, column: int) -> None:
        self.problem = problem
        self.line = line
        self.column = column
        super().__init__(f"line {line}, column {column}: {problem}")


class TriggerConfigError(ConfigurationError):
    """A triggers block is wrong; all problems are named, in the block's order."""


class SealError(RfrError):
    """A sealed document can't be opened, or was changed; the message holds nothing of its content."""


class DeliveryError(RfrError):
    """Webhooks could not be delivered; the message names triggers and hosts, never a path or a secret."""
