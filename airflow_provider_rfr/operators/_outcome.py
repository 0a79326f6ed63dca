"""Outcomes of a task: its return value or the one sentence that it fails with, assets of tables, OpenLineage's facets.

OpenLineage asks for facets in a fork of the task's process, which must not talk to Airflow any more. So everything from
connections is collected while the task runs. The fork reads only the catalog, for the columns.
"""

from __future__ import annotations

import logging
import re
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import SplitResult, urlsplit

from airflow.providers.common.compat.sdk import AirflowFailException
from airflow.sdk import Asset, AssetAlias

from airflow_provider_rfr import exceptions
from airflow_provider_rfr.exceptions import RateLimitedError, RefreshFailedError, RfrError
from airflow_provider_rfr.hooks.dag_arguments import is_pending
from airflow_provider_rfr.hooks.lake import table_asset
from airflow_provider_rfr.http.redaction import without_credentials
from airflow_provider_rfr.operators.arguments import stream_names, tables_of
from airflow_provider_rfr.refresh.past import changes_in_words
from airflow_provider_rfr.text import one_line

if TYPE_CHECKING:
    from airflow.providers.openlineage.extractors import OperatorLineage
    from airflow.sdk import BaseOperator, Context

    from airflow_provider_rfr.builtins.plan import Plan
    from airflow_provider_rfr.lake import LakeSettings

_log = logging.getLogger(__name__)

EVENT_FIGURES: Final[Mapping[str, str]] = {
    "stream": "name of the stream",
    "generation": "number of the refresh",
    "snapshot_id": "the table's snapshot, as text, because browsers round a number of its size",
    "pages": "pages that were read, by all attempts",
    "rows": "rows that were published",
    "pages_refetched": "pages that the ledger knows were read twice",
    "attempts": "attempts that the refresh took",
}
"""The figures of a table in its asset event, in the order of the result, with their meanings."""
_MORE: Final[Mapping[str, str]] = {
    "pages_fetched": "pages that the last try read",
    "pages_skipped": "pages that an error rule left out",
    "records_missing": "records that the API's own count promised and did not send",
    "partitions": "partitions of the stream",
    "duplicates_removed": "rows that were left out because a later one has their key",
    "schema_changes": "how the publish changed the table's columns; None if it did not",
    "already_published": "an earlier try of the run published the table, and this one read nothing",
    "changes": "records of an incremental sync by what became of them",
    "seconds": "seconds by phase",
}
RESULT_FIGURES: Final[Mapping[str, str]] = {
    "stream": EVENT_FIGURES["stream"],
    "target": "name of the table",
    **EVENT_FIGURES,
    **_MORE,
}
"""The figures of the task's return value, with their meanings."""
_OF_ONE_STREAM = (
    *("stream", "target", "generation", "snapshot_id", "attempts"),
    *("schema_changes", "already_published", "changes"),
)
LONGEST_SENTENCE = 2_000
_ERROR_LINE = re.compile(r"(Exception in thread|Error:|ERROR\b|[\w.]+(Error|Exception): )")


def result_of(figures: Mapping[str, Any]) -> dict[str, Any]:
    """Return the return value of the task, from the driver's figures.

    For one stream, these are its figures; for several, totals, and each stream's figures below ``streams``. A snapshot
    id is text, because JavaScript in Airflow's pages rounds a number of its size.
    """
    result = {name: figures[name] for name in RESULT_FIGURES if name in figures}
    if result.get("changes") is None:
        # A full refresh counts no changes.
        result.pop("changes", None)
    if result.get("snapshot_id") is not None:
        result["snapshot_id"] = str(result["snapshot_id"])
    several = figures.get("streams")
    if not several:
        return result
    for name in _OF_ONE_STREAM:
        result.pop(name, None)
    result["streams"] = {one["stream"]: result_of(one) for one in several}
    return result


def result_of_ledger(tables: Mapping[str, str], found: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the return value of the task from its ledgers, for a driver whose result line is not in this task's log.

    :param tables: table by stream
    :param found: the ledgers' figures by table
    """
    every = [{"stream": stream, **found[table]} for stream, table in tables.items()]
    if len(every) == 1:
        return every[0]
    names = ("pages", "rows", "pages_refetched", "partitions")
    totals = {name: sum(one.get(name, 0) for one in every) for name in names}
    return {**totals, "streams": {one["stream"]: one for one in every}}


def sentence_of(result: Mapping[str, Any]) -> str:
    """Return the last line of the task's log: rows and tables that were published, now or by an earlier try.

    :param result: the return value of the task
    """
    tables = list(result["streams"].values()) if "streams" in result else [result]
    before = [table for table in tables if table.get("already_published")]
    synced = [table for table in tables if table not in before and "changes" in table]
    now = [table for table in tables if table not in before and table not in synced]
    sentences = [
        f"{table['target']}: {changes_in_words(table['changes'])}; it has {table['rows']} rows" for table in synced
    ]
    if now:
        rows, pages = (sum(table[name] for table in now) for name in ("rows", "pages"))
        seconds = (result.get("seconds") or {}).get("total")
        took = "" if seconds is None else f" in {seconds:.1f} s"
        sentences.append(f"Published {rows} rows of {pages} pages to {_names(now)}{took}")
    if before:
        verb = "was" if len(before) == 1 else "were"
        sentences.append(f"{_names(before)} {verb} published already by this run; nothing was read")
    return "; ".join(sentences)


def _names(tables: Sequence[Mapping[str, Any]]) -> str:
    return ", ".join(table["target"] for table in tables)


def figures_by_table(result: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the figures for asset events by table, from the return value of the task."""
    every: Sequence[Mapping[str, Any]] = list(result["streams"].values()) if "streams" in result else [result]
    return {one["target"]: {name: one[name] for name in EVENT_FIGURES if name in one} for one in every}


def failure_of_driver(
    result_line: Mapping[str, Any] | None, exit_code: int | None = None, lines: Sequence[str] = ()
) -> Exception | None:
    """Return the error of a driver that failed; None if neither its result line nor the exit code shows an error.

    :param result_line: its result line; None if it printed none
    :param exit_code: exit code of spark-submit; negative for the signal that ended it
    :param lines: the end of what spark-submit printed
    """
    if result_line is not None and "error" in result_line:
        errors = result_line.get("errors") or [result_line["error"]]
        # One error that a retry may fix is enough for a retry, which also reads the missing pages of other streams.
        hopeful = (error for error in errors if not isinstance(_failure_of(error), AirflowFailException))
        return _failure_of(next(hopeful, errors[0]), len(errors) - 1)
    if not exit_code:
        return None
    number = -exit_code if exit_code < 0 else exit_code - 128
    if 0 < number < 65:
        name = next((Signal.name for Signal in signal.Signals if Signal == number), f"signal {number}")
        why = f"was ended by {name}" + (" (often for its memory)" if number == signal.SIGKILL else "")
    else:
        why = f"ended with exit code {exit_code}"
    cause = cause_in(lines)
    problem = f"the Spark driver {why}" + (f": {cause}" if cause else "")
    return RefreshFailedError(_sentence(problem, "what was read is kept for the next attempt"))


def _failure_of(error: Mapping[str, Any], more: int = 0) -> Exception:
    """Return the exception for an error in a driver's last line; :class:`AirflowFailException` if no retry helps."""
    kind, cause, stream = _class_named(error.get("type")), _class_named(error.get("cause")), error.get("stream")
    problem = one_line(str(error.get("message") or error.get("type")), LONGEST_SENTENCE)
    if stream and not problem.startswith(f"{stream}:"):
        problem = f"{stream}: {problem}"
    if more:
        problem += f" (and {more} more)"
    final = next((error for error in (kind, cause) if not error.retryable), None)
    if final is not None:
        return AirflowFailException(_sentence(problem, final.advice))
    if RateLimitedError in (kind, cause):
        return RateLimitedError(problem, retry_after=float(error.get("retry_after") or 0.0))
    # Keep the error's own class if that takes a message alone, so that retry policies can tell errors apart.
    try:
        return RefreshFailedError(problem) if kind is RfrError else kind(problem)
    except TypeError:
        return RefreshFailedError(problem)


def _class_named(name: Any) -> type[RfrError]:
    """Return the class of an error that a driver names; the base class for one that is not of this package."""
    kind = getattr(exceptions, str(name), None)
    return kind if isinstance(kind, type) and issubclass(kind, RfrError) else RfrError


@contextmanager
def final_errors(log_error: Callable[[str], Any]) -> Iterator[None]:
    """Replace an error that no retry helps by :class:`AirflowFailException`, with a message of one line.

    The line is logged as well: Airflow shows an exception as the title of a traceback, cut off at the window's edge.
    """
    try:
        yield
    except Exception as error:
        sentence = one_line(str(error), LONGEST_SENTENCE)
        log_error(sentence)
        if isinstance(error, RfrError) and not error.retryable:
            raise AirflowFailException(sentence) from None
        raise


def cause_in(lines: Sequence[str]) -> str | None:
    """Find the line with the reason why spark-submit gave up: the innermost cause, else the first error."""
    causes = [line for line in lines if line.startswith("Caused by: ")]
    reasons = causes[-1:] or [line for line in lines if _ERROR_LINE.match(line)][:1]
    return one_line(reasons[0], LONGEST_SENTENCE) if reasons else None


def _sentence(problem: str, remedy: str) -> str:
    return f"{problem.rstrip('. ')}; {remedy}" if remedy else problem


_SCHEME = "rfr"
SOURCES = AssetAlias(name=f"{_SCHEME}_sources")
"""Outlet of a deploy's task. An alias, because the sources that it changes are known only after the deploy."""


@dataclass(frozen=True, slots=True)
class Lineage:
    """The inputs and outputs of one attempt.

    :ivar source: namespace of the streams
    :ivar tables: table by stream
    :ivar mode: how the publish writes, e.g. ``replace``
    :ivar figures: figures by table, once the tables are published
    """

    source: str
    tables: Mapping[str, str]
    mode: str
    lake: LakeSettings = field(repr=False)
    figures: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


def source_name(source: Mapping[str, Any]) -> str:
    """Return the namespace of a source: the API's scheme and host, else the class that reads it.

    :param source: the source in the refresh's document, with the connection's settings in ``config``
    """
    definition = source.get("definition")
    urls = [(source.get("config") or {}).get("base_url")]
    urls += [definition.get("base_url")] if isinstance(definition, Mapping) else []
    for url in urls:
        parts = urlsplit(url) if isinstance(url, str) else None
        if parts is not None and parts.scheme in ("http", "https") and parts.hostname:
            return f"{parts.scheme}://{_host(parts)}"
    return f"source:{source.get('class') or 'unknown'}"


def task_alias(task: BaseOperator) -> AssetAlias:
    """Return the alias for the tables of a refresh that are known only when it runs."""
    return table_alias(task.dag_id, task.task_id)


def table_alias(dag_id: str, task_id: str) -> AssetAlias:
    """Return the alias of a task that may not exist yet, because it is mapped."""
    return AssetAlias(name=f"{_SCHEME}:{dag_id}/{task_id}")


def outlets_of(task: BaseOperator, lake_conn_id: Any, streams: Any, target: Any) -> list[Asset | AssetAlias]:
    """Return the outlets of a refresh: its tables, or its alias where these are not known yet."""
    if any(is_pending(value) for value in (lake_conn_id, streams, target)):
        return [task_alias(task)]
    return [table_asset(table, lake_conn_id) for table in tables_of(stream_names(streams), target).values()]


def add_table_events(
    context: Context,
    task: BaseOperator,
    lake_conn_id: str,
    tables: Iterable[str],
    published: Mapping[str, Mapping[str, Any]],
) -> None:
    """Attach the figures of each published table to its asset's event; the task's other tables get no event.

    :param tables: of all streams of the task, also of those that the run leaves out
    :param published: figures by table
    """
    assets = {table: table_asset(table, lake_conn_id) for table in published}
    others = [asset for asset in (table_asset(table, lake_conn_id) for table in tables) if asset not in assets.values()]
    # Once a task has succeeded, Airflow sends an event for each asset among its outlets.
    task.outlets = [outlet for outlet in task.outlets if outlet not in others]
    events = context.get("outlet_events")
    if events is None:
        return
    alias = task_alias(task)
    for table, figures in published.items():
        asset = assets[table]
        if asset in task.outlets:
            events[asset].extra = dict(figures)
        elif alias in task.outlets:
            events[alias].add(asset, extra=dict(figures))


def source_asset(lake_conn_id: str, table: str) -> Asset:
    """Return the asset of a declared source. It has an event when a deploy created, emptied or redefined the source."""
    return Asset(name=f"{_SCHEME}_source:{lake_conn_id}/{table.casefold()}")


def add_source_events(context: Context, lake_conn_id: str, deploys: Mapping[str, Plan]) -> None:
    """Add an event for each source to refresh after these deploys; they are sent if the task succeeds.

    :param deploys: plan by id of the deploy
    """
    events = context.get("outlet_events")
    if events is None:
        return
    for deploy_id, plan in deploys.items():
        for name, why in plan.sources_to_load().items():
            events[SOURCES].add(source_asset(lake_conn_id, name), extra={"deploy_id": deploy_id, "why": why})


def facets_of(lineage: Lineage) -> OperatorLineage[Any, Any]:
    """Return OpenLineage's inputs and outputs; outputs have rows, columns and snapshot once they are published."""
    from airflow.providers.common.compat.openlineage import facet
    from airflow.providers.openlineage.extractors import OperatorLineage

    lake, outputs = _lake_name(lineage.lake.properties), []
    for table in lineage.tables.values():
        facets, statistics = dict[str, Any](), dict[str, Any]()
        if (figures := lineage.figures.get(table)) is not None:
            facets = _table_facets(lineage, table, str(figures["snapshot_id"]))
            statistics["outputStatistics"] = facet.OutputStatisticsOutputDatasetFacet(rowCount=figures["rows"])
        outputs.append(facet.OutputDataset(namespace=lake, name=table, facets=facets, outputFacets=statistics))
    inputs = [facet.Dataset(namespace=lineage.source, name=stream) for stream in lineage.tables]
    return OperatorLineage(inputs=inputs, outputs=outputs)


def _table_facets(lineage: Lineage, table: str, snapshot_id: str) -> dict[str, Any]:
    """Return the facets of a published table, without columns and location where the catalog can't be read."""
    from airflow.providers.common.compat.openlineage import facet
    from openlineage.client.generated.dataset_version_dataset import DatasetVersionDatasetFacet

    from airflow_provider_rfr.lake.catalog import load_table, open_catalog

    facets: dict[str, Any] = {"version": DatasetVersionDatasetFacet(datasetVersion=snapshot_id)}
    if lineage.mode == "replace":
        state = facet.LifecycleStateChange.OVERWRITE
        facets["lifecycleStateChange"] = facet.LifecycleStateChangeDatasetFacet(lifecycleStateChange=state)
    try:
        loaded = load_table(open_catalog(lineage.lake), table)
    except Exception as error:  # noqa: BLE001 - its text may name addresses with credentials
        _log.warning("the columns of %s are left out of the lineage (%s)", table, type(error).__name__)
        return facets
    if loaded is not None:
        columns = [(column.name, str(column.field_type)) for column in loaded.schema().fields]
        fields = [facet.SchemaDatasetFacetFields(name=name, type=kind) for name, kind in columns]
        facets["schema"] = facet.SchemaDatasetFacet(fields=fields)
        # Spark's own lineage names a table by the location of its files.
        parts = urlsplit(loaded.location())
        namespace = f"{parts.scheme}://{_host(parts)}" if parts.netloc else parts.scheme or "file"
        location = facet.Identifier(namespace=namespace, name=parts.path, type="LOCATION")
        facets["symlinks"] = facet.SymlinksDatasetFacet(identifiers=[location])
    return facets


def _lake_name(properties: Mapping[str, str]) -> str:
    """Return the namespace of a catalog's tables: the catalog's address, without credentials."""
    uri = properties.get("uri", "")
    parts = urlsplit(uri if uri.startswith(("http:", "https:")) else without_credentials(uri))
    if parts.scheme:
        # SQLAlchemy's driver is not part of a database's name.
        return f"{parts.scheme.partition('+')[0]}://{_host(parts)}{parts.path.rstrip('/')}"
    return urlsplit(properties.get("warehouse", ""))._replace(query="", fragment="").geturl().rstrip("/") or "iceberg"


def _host(parts: SplitResult) -> str:
    """Return host and port, without user and password."""
    return parts.netloc.rpartition("@")[2]
