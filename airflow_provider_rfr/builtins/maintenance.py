"""Reads of registry and catalog for a plan, the fence against deploys that lost their lease, and maintenance.

Maintenance writes the history of deploys, deletes retired tables, and forgets objects.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import orjson
from sqlalchemy import Connection

from airflow_provider_rfr.builtins import model
from airflow_provider_rfr.builtins.model import (
    MARKER,
    ActualState,
    CatalogSpec,
    Column,
    Dependency,
    Kind,
    LiveObject,
    RecordedObject,
    RegistryState,
    UserView,
    namespace_of,
    retired_by,
)
from airflow_provider_rfr.builtins.plan import Plan, StepAction
from airflow_provider_rfr.builtins.queries import dependencies, expand_stars, is_star_last, output_columns
from airflow_provider_rfr.documents import suggestion
from airflow_provider_rfr.exceptions import ConfigurationError, PlanError, QueryError, RfrError
from airflow_provider_rfr.history import History
from airflow_provider_rfr.lake.catalog import Catalog
from airflow_provider_rfr.lake.commits import retry_conflicts
from airflow_provider_rfr.lake.migrated_table import MigratedTable, TableChange, purge_table
from airflow_provider_rfr.lake.tables import TableEntry, ViewEntry, find_view, holds_views, list_tables, list_views
from airflow_provider_rfr.lake.types import quoted
from airflow_provider_rfr.sinks.run import needed_physicals, sink_states
from airflow_provider_rfr.store import deploys
from airflow_provider_rfr.store.engine import ControlStore, instant
from airflow_provider_rfr.store.leases import Lease, acquire

if TYPE_CHECKING:
    from airflow_provider_rfr.builtins.spark_sql import Outputs, SparkSqlEngine


log = logging.getLogger(__name__)


def read_recorded(connection: Connection, project: str) -> RegistryState:
    """Return the registry, with the progress of all sinks."""
    registry = deploys.read_registry(connection, project)
    objects = tuple(model.decode(RecordedObject, json.loads(entry.body)) for entry in registry.entries)
    return RegistryState(registry.revision, registry.version, objects, sink_states(connection))


def entry_of(obj: RecordedObject) -> deploys.Entry:
    return deploys.Entry(str(obj.uuid), obj.name, obj.kind.value, obj.name, model.dumps(obj).decode())


def observe(
    catalog: Catalog, store: ControlStore, *, project: str, spec: CatalogSpec | None = None
) -> tuple[RegistryState, ActualState]:
    """Return the registry, and the state of the catalog, including users' tables and views.

    :param spec: the declarations to plan; columns that they require are checked for NULLs
    """
    with store.read() as connection:
        recorded = read_recorded(connection, project)
        unfinished = frozenset(UUID(uuid) for uuid in deploys.touched(connection, project))
        left = deploys.unfinished_ids(connection, project)
    views = list_views(catalog)
    entries: tuple[TableEntry | ViewEntry, ...] = (*views, *list_tables(catalog))
    # A table that a finished deploy retired is garbage: its object may be another table by now.
    aside = ((entry, retired_by(entry.name)) for entry in entries)
    current = (entry for entry, by in aside if by is None or any(deploy.startswith(by) for deploy in left))
    # Where a table and a view have one name, the table counts.
    objects = {obj.key: obj for obj in (_live(entry, recorded) for entry in current)}
    if spec is not None:
        objects |= _with_nulls(catalog, spec, objects)
    # From the entries, because a user's star over a source shows its undeclared columns, too.
    columns = {entry.name.casefold(): tuple(one.name for one in entry.columns) for entry in entries}
    users = tuple(_user_view(view, catalog.name, columns) for view in views if _marker_of(view.properties) is None)
    return recorded, ActualState(objects, users, unfinished, holds_views(catalog))


def _live(entry: TableEntry | ViewEntry, recorded: RegistryState) -> LiveObject:
    marker, properties = _marker_of(entry.properties), dict(entry.properties)
    record = recorded.by_uuid.get(marker) if marker is not None else None
    columns = tuple(Column(column.name, column.type, column.required, column.comment) for column in entry.columns)
    if record is not None and record.kind is Kind.SOURCE:
        # Only declared columns of a source count: its refresh adds others, which is not drift.
        declared = {column.name.casefold() for column in record.columns}
        columns = tuple(column for column in columns if column.name.casefold() in declared)
    if isinstance(entry, ViewEntry):
        return LiveObject(entry.name, Kind.VIEW, marker, columns, properties, query=entry.query)
    of = (Kind.TABLE, marker, columns, properties, entry.partitioning, entry.keys, entry.rows, entry.bytes)
    return LiveObject(entry.name, *of, names=model.names_since(recorded.revision, properties))


def _with_nulls(catalog: Catalog, spec: CatalogSpec, objects: Mapping[str, LiveObject]) -> dict[str, LiveObject]:
    """Return the tables that may hold a NULL in a column that the declaration requires, with ``nulls`` set."""
    declared, tables = spec.by_id(), dict[str, LiveObject]()
    for key, live in objects.items():
        if live.kind is not Kind.TABLE or live.marker is None or live.marker not in declared:
            continue
        required = [column for column in declared[live.marker].columns if column.required]
        called = (name for column in required for name in (column.name, *(was.name for was in column.was)))
        names = {name.casefold() for name in called if name is not None}
        asked = [column.name for column in live.columns if not column.required and column.name.casefold() in names]
        table = MigratedTable.load(catalog, live.name) if asked else None
        if table is not None and (nulls := table.may_have_nulls(asked)):
            tables[key] = replace(live, nulls=frozenset(map(str.casefold, nulls)))
    return tables


def view_reads(entry: ViewEntry, catalog: str, known: Iterable[str] = ()) -> tuple[Dependency, ...] | None:
    """Return the tables and views that a view reads, without the catalog's name.

    :param known: case-folded names of tables and views
    :returns: None if the view's text can't be parsed here, so that it may read anything
    """
    if not entry.query:
        return None
    prefix = f"{catalog.casefold()}."
    both = {name for key in known for name in (key, prefix + key)}
    try:
        reads = dependencies(entry.query, entry.namespace or namespace_of(entry.name), known=both)
    except QueryError:
        return None
    return tuple(Dependency(read.name.removeprefix(prefix), None, read.columns) for read in reads)


def bridge_text(text: str, outputs: Outputs) -> str:
    """Return the temporary text of a view: the outputs of its own text, cast to their future types."""
    casts = ", ".join(f"CAST({quoted(name)} AS {type}) AS {quoted(name)}" for name, type in outputs)
    return f"SELECT {casts}{_end_of_bridge(text)}"


def _end_of_bridge(text: str) -> str:
    return f" FROM (\n{text}\n)"


def own_text(view: ViewEntry) -> str:
    """Return the text of a user's view that its user gave it, also while it is bridged."""
    own = view.properties.get(model.BRIDGED, "")
    return own if own and view.query.endswith(_end_of_bridge(own)) else view.query


def _user_view(entry: ViewEntry, catalog: str, columns: Mapping[str, tuple[str, ...]]) -> UserView:
    query = own_text(entry)
    bridged = query != entry.query
    mark, _, why = entry.properties.get(model.BROKEN, "").partition(" ")
    broken = why if mark and model.broken_mark(entry.query, why).startswith(f"{mark} ") else None
    reads = view_reads(entry, catalog, columns)
    pinned = (None, False) if bridged or "*" not in entry.query else _pinned(entry, catalog, columns)
    return UserView(entry.name, query, reads, broken, bridged, *pinned)


def _pinned(
    entry: ViewEntry, catalog: str, columns: Mapping[str, tuple[str, ...]], only: Container[str] | None = None
) -> tuple[str | None, bool]:
    """Return the text of a user's view with its stars expanded, and whether its star comes last.

    With that text, the view shows the same columns when it is created again. The text is None if the stars can't be
    expanded.

    :param only: the columns to which the stars are limited; None: all columns
    """
    prefix, namespace = f"{catalog.casefold()}.", entry.namespace or namespace_of(entry.name)

    def columns_of(name: str) -> tuple[str, ...] | None:
        names = columns.get(name.casefold().removeprefix(prefix))
        return tuple(column for column in names if only is None or column.casefold() in only) if names else None

    try:
        text = expand_stars(entry.query, columns_of, namespace)
    except QueryError:
        return None, False
    if text == entry.query or not is_star_last(entry.query):
        return text, False
    outputs = [output_column.casefold() for output_column in output_columns(text, columns_of, namespace)]
    shown = [column.name.casefold() for column in entry.columns]
    if only is None and shown and outputs != shown == outputs[: len(shown)]:
        # The view does not show columns that were added after the last one since it was created.
        return _pinned(entry, catalog, columns, shown)
    return text, True


def _marker_of(properties: Mapping[str, str]) -> UUID | None:
    """Return the id of the object that the properties name; None if they name none."""
    with suppress(KeyError, ValueError):
        return UUID(properties[MARKER])
    return None


_COMPUTED: Final = (StepAction.REWRITE.value, StepAction.RECOMPUTE.value)


def fence(catalog: Catalog, store: ControlStore, lease: Lease) -> None:
    """Mark the tables of other deploys' unfinished steps with this lease's token, and delete their uncommitted files.

    A deploy may be paused, lose its lease, and wake up. Its writes to the control store are refused by the token, but
    its Iceberg commits are not. They name the table state that the deploy has read, so a change of each table that it
    may be working on makes them fail. If it reads the table only afterwards, it finds a token that is newer than its
    own.
    """
    with store.read() as connection:
        steps = deploys.begun_steps(connection, lease.name)
    for step in steps:
        if step.token < lease.token and step.uuid is not None:
            retry_conflicts(20)(_mark, catalog, step, lease)
            # After the mark: only now it is sure that no commit will ever name these files.
            if step.action in _COMPUTED:
                _collect(catalog, step)


def _collect(catalog: Catalog, step: deploys.JournalStep) -> None:
    """Delete the data files of a fenced step."""
    table = MigratedTable.load(catalog, step.name)
    if table is not None and table.properties.get(MARKER) == step.uuid:
        family = model.rewrite_family(UUID(step.uuid), table.properties, step.token)
        table.coming(TableChange(), family).collect(())


def _mark(catalog: Catalog, step: deploys.JournalStep, lease: Lease) -> None:
    table = MigratedTable.load(catalog, step.name)
    if table is None or table.properties.get(MARKER) != step.uuid or model.token_of(table.properties) > step.token:
        return
    # This deploy may have been replaced, too. If that happens after this line, the newer deploy's change of the table
    # makes the commit fail.
    lease.ensure()
    table.alter(TableChange(properties={model.TOKEN: str(lease.token)}))


_MIGRATIONS: Final = "rfr_system.migration_history"
_OVER: Final = {"done": "done", "abandoned": "failed"}
_OF_DEPLOY: Final = ("deploy_id", "project", "from_version", "to_version", "base_revision", "plan_hash", "actor")


def record_deploys(catalog: Catalog, store: ControlStore, project: str) -> None:
    """Add each step of the project's newest finished deploys to the package's history, once.

    This includes deploys whose process died before it could do so. A history that can't be written is only a warning:
    the deploy itself is done.

    Rows of other history tables that wait are appended, too, because the deploy may have created their tables.
    """
    try:
        with store.read() as connection:
            over = [deploy for deploy in deploys.history(connection, project) if deploy.state in _OVER]
            rows = [row for deploy in over for row in _history(deploy, deploys.steps_of(connection, deploy.deploy_id))]
        history = History(store, catalog)
        history.report(_MIGRATIONS, rows, ("deploy_id", "seq"))
        history.maintain(always=True)
    except Exception as error:  # noqa: BLE001 - each catalog refuses in its own way, and its text may hold secrets
        reason = str(error) if isinstance(error, RfrError) else type(error).__name__
        log.warning("the history of migrations can't be written (%s); the deploy is not affected", reason)


def plan_of(deploy: deploys.Deploy) -> Plan | None:
    """Return the plan that a deploy carried out; None if another version of this package wrote it in its own format."""
    try:
        return Plan.from_json(orjson.loads(deploy.plan))
    except PlanError:
        return None


def _history(deploy: deploys.Deploy, steps: Sequence[deploys.JournalStep]) -> Iterator[dict[str, Any]]:
    same, plan = {name: getattr(deploy, name) for name in _OF_DEPLOY}, plan_of(deploy)
    planned = {step.seq: step for step in plan.steps} if plan is not None else {}
    # A deploy whose process died has no end time until another one begins, and its last step never gets one.
    ended = deploy.ended_at or deploy.started_at
    yield {**same, **_outcome(deploy, ended), "seq": 0, "state": _OVER[deploy.state]}
    for record in steps:
        evidence = orjson.loads(record.evidence or "{}")
        row = {
            **same,
            **_outcome(record, ended),
            "seq": record.seq,
            "object_id": record.uuid,
            "object_name": record.name,
            "how": record.action,
            "state": {"done": "done", "planned": "skipped"}.get(record.state, "failed"),
            "rows_after": evidence.get("rows"),
            "snapshot_after": evidence.get("snapshot_after"),
        }
        if (step := planned.get(record.seq)) is not None:
            row |= {"kind": step.kind.value, "reason": step.reason, "changes": step.changes, "loses": list(step.losses)}
        yield row


def _outcome(part: deploys.Deploy | deploys.JournalStep, ended: int) -> dict[str, Any]:
    started = None if part.started_at is None else instant(part.started_at)
    times = {"started_at": started, "ended_at": instant(part.ended_at or ended)}
    return {**times, "attempts": part.attempts, "error": part.error}


@dataclass(frozen=True, slots=True)
class Collected:
    """The result of a garbage collection: names of tables.

    :ivar deleted: without tables that did not exist any more
    :ivar kept: tables that have to wait, with the reasons
    :ivar failed: tables that could not be deleted and are tried again, with the errors
    """

    deleted: tuple[str, ...] = ()
    kept: Mapping[str, str] = field(default_factory=dict)
    failed: Mapping[str, str] = field(default_factory=dict)


def gc(*, project: str, catalog: Catalog, store: ControlStore) -> Collected:
    """Delete queued tables that are due, with their files, and data files that dead deploys did not commit.

    A table that can't be deleted stays in the queue for the next run.

    :raises DeployBusyError: another deploy holds the lease
    """
    outcomes: dict[str, dict[str, str]] = {"deleted": {}, "gone": {}, "kept": {}, "failed": {}}
    with acquire(store, project) as lease:
        # A deploy that lost its lease may still be writing: after this, none of its commits succeeds.
        fence(catalog, store, lease)
        with store.read() as connection:
            now = store.now(connection)
            queue = deploys.queued(connection, project)
            unfinished = deploys.unfinished_ids(connection, project)
            needed = needed_physicals(connection)
        for retired in queue:
            if retired.not_before > now:
                outcome, why = "kept", "its time has not come"
            elif retired.deploy_id in unfinished:
                outcome, why = "kept", "its deploy did not finish, and the next one may need it"
            else:
                outcome, why = _delete(catalog, lease, retired, needed)
            outcomes[outcome][retired.physical] = why
    return Collected(tuple(outcomes["deleted"]), outcomes["kept"], outcomes["failed"])


def _delete(catalog: Catalog, lease: Lease, row: deploys.Garbage, needed: Collection[str]) -> tuple[str, str]:
    """Delete a table, unless it lacks its marker or a sink needs it; a failure does not stop the others.

    :returns: outcome (``deleted``, ``gone``, ``kept`` or ``failed``) and its reason
    """
    name = row.physical
    try:
        table = MigratedTable.load(catalog, name)
        if table is not None:
            if table.properties.get(MARKER) != row.uuid:
                return "kept", "it does not carry our marker"
            if table.entry.uuid in needed:
                return "kept", "a sink still reads from it"
            # The catalog does not check the lease, and a purged table can't be restored. So check it right before.
            lease.ensure()
            purge_table(catalog, name)
        # After the deletion: if the process dies in between, the next run finds no table, and removes the row.
        lease.write(lambda connection, now: deploys.dequeue(connection, lease.name, name))
        return ("gone" if table is None else "deleted"), ""
    except RfrError:
        raise
    except Exception as error:  # noqa: BLE001 - each store refuses in its own way; it is tried again
        problem = type(error).__name__
        lease.write(lambda connection, now: deploys.failed(connection, lease.name, name, problem))
        return "failed", problem


_OF_STEPS: Final = (model.DEPLOY, model.STEP, model.TOKEN, model.DONE, model.WAS, model.EMPTIED)
_MARKS: Final = (MARKER, model.PROJECT, *_OF_STEPS)


def forget_objects(
    names: Collection[str], *, project: str, catalog: Catalog, store: ControlStore, sql: SparkSqlEngine | None = None
) -> tuple[str, ...]:
    """Remove objects from the registry, and their marks from the catalog; return their recorded names.

    Tables and views themselves stay. Views need ``sql``, because PyIceberg does not write their properties.

    A crash in the middle leaves objects that are recorded and have no marker; calling it again finishes the work.

    :raises ConfigurationError: a name is not recorded, is a sink or is exported by one, or is a view without ``sql``
    :raises DeployBusyError: another deploy holds the lease
    """
    with acquire(store, project) as lease:
        with store.read() as connection:
            recorded = read_recorded(connection, project)
            base = (recorded.revision, recorded.version, deploys.read_registry(connection, project).deploy_id)
        by_key = {obj.key: obj for obj in recorded.objects}
        if unknown := [name for name in names if name.casefold() not in by_key]:
            raise ConfigurationError("name", f"{unknown[0]} is not recorded", suggestion(unknown[0], by_key))
        leaving = [by_key[key] for key in dict.fromkeys(name.casefold() for name in names)]
        for obj in leaving:
            if obj.kind is Kind.SINK:
                raise ConfigurationError("name", f"{obj.name} is a sink", "remove it by its declaration")
            if obj.kind is Kind.VIEW and sql is None:
                raise ConfigurationError("sql", f"{obj.name} is a view", "give an engine")
            if sink := next((sink for sink in recorded.sinks if sink.source == obj.uuid), None):
                raise ConfigurationError("name", f"the sink {sink.name} exports {obj.name}", "remove the sink first")
        # Markers are removed before the records. In the other order, a crash would leave markers without records, and
        # this function would refuse the names when it is called again.
        for obj in leaving:
            lease.ensure()
            if obj.kind is Kind.VIEW and sql is not None:
                view = find_view(catalog, obj.name)
                if view is not None and view.properties.get(MARKER) == str(obj.uuid):
                    sql.set_view_properties(obj.name, dict.fromkeys(_MARKS))
                continue
            table = MigratedTable.load(catalog, obj.name)
            if table is not None and table.properties.get(MARKER) == str(obj.uuid):
                table.alter(TableChange(unset=[mark for mark in _MARKS if mark in table.properties]))
        gone = [str(obj.uuid) for obj in leaving]
        lease.write(lambda connection, now: deploys.write_registry(connection, project, *base, now, forgotten=gone))
    return tuple(obj.name for obj in leaving)
