"""The names that begin with ``rfr.`` in tables, snapshots, catalogs and files, with their meanings, for the reference.

Modules that write or read a name define it themselves; a test compares them with these lists.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

TABLE: Final[Mapping[str, str]] = {
    "rfr.kind": "`table`: this package made the table. `ledger`: the table is a ledger.",
    "rfr.published": "ledger, generation and snapshot of the newest publish, with colons",
    "rfr.expire.max-copies": (
        "replaced copies of the files that an expiry keeps, however young, but for those replaced in the last 6 hours"
    ),
    "rfr.hold.<holder>": "sequence number of the oldest snapshot that a webhook, a sink or another reader needs",
    "rfr.webhooks.<endpoint>.since": "sequence number of the first commit that the endpoint gets",
    "rfr.state-snapshot": "snapshot that got the state of the sync last",
    "rfr.state-kept": (
        "snapshot that an expiry kept for the state in it, and the oldest one that it left in the line of `main`,"
        " with a colon"
    ),
    "rfr.keys": "columns of the declared primary key, as JSON",
}
"""Properties of tables."""

OBJECT: Final[Mapping[str, str]] = {
    "rfr.object-id": "id of a built-in object. Without it, a deploy drops and replaces nothing.",
    "rfr.project": "project that owns the object",
    "rfr.deploy-id": "deploy that changed the object last",
    "rfr.step": "step of that deploy: `<deploy>/<number>`",
    "rfr.token": "token of the lease under which it was changed last",
    "rfr.done": "declaration and columns that the object was brought to",
    "rfr.was": "names that the columns had before the deploy that changed them last",
    "rfr.emptied": "deploy that made or emptied the table",
    "rfr.text": "whole text of a view that begins or ends with a comment, which Spark drops",
    "rfr.bridged": "of a user's view: its own text, which it gets back after the deploy",
    "rfr.broken": "of a user's view: digest of its text, and why the deploy broke it",
}
"""Properties of built-in tables and views, and of views that depend on them."""

SNAPSHOT: Final[Mapping[str, str]] = {
    "rfr.ledger": "id of the ledger that the rows come from",
    "rfr.generation": "generation that was published",
    "rfr.epoch": "attempt that published it",
    "rfr.attempts": "attempts up to the publish",
    "rfr.pages": "pages that were read",
    "rfr.partitions": "partitions that were read",
    "rfr.stream": "name of the stream",
    "rfr.mode": "`replace`, `append` or `merge`",
    "rfr.rows": "rows that the commit added",
    "rfr.duplicates-removed": "rows that were left out because a later one has their key",
    "rfr.pages-skipped": "pages that an error rule left out",
    "rfr.records-missing": "records that the API's own count promised and did not send",
    "rfr.opened-at": "time at which the refresh began",
    "rfr.published-at": "time of the publish",
    "rfr.commit-id": "id of the commit, as webhooks report it; each attempt to publish the generation has the same",
    "rfr.run-key": "run that published it",
    "rfr.event": "event of the commit webhooks, as JSON: see [Events](events.md#webhook-events)",
    "rfr.schema-changes": "how the publish changed the table's columns",
    "rfr.state": "state of the incremental sync, as JSON; `none` after a commit that replaced its rows",
    "rfr.state-file": "location of a state of more than 8 kB",
    "rfr.window": "window of the cursor's values that a backfill read",
    "rfr.upstream": "of such a window: name of the API, if the connection led to another one before",
    "rfr.inserted": "records of a sync that became new rows",
    "rfr.updated": "records that replaced a row",
    "rfr.unchanged": "records that equal the row of the table",
    "rfr.stale": "records that are older than the row of the table",
    "rfr.deleted": "records that removed a row",
    "rfr.unknown-deletions": "records that were to remove a row that is not there",
    "rfr.older-versions": "records of which the sync has a newer version",
    "rfr.outside": "records outside of the window",
    "rfr.doubled-keys": "rows beyond the first of their key that were replaced as well",
    "rfr.changes": "rows that a merge changed, for sinks, as JSON",
    "rfr.changes-file": "location of the keys of the rows that a merge deleted",
    "rfr.inputs": "of a materialized view: snapshot of each table that its rows come from, as JSON",
    "rfr.migration": "step of the deploy that made the snapshot: `<deploy>/<number>`",
}
"""Properties in the summaries of a table's snapshots."""

LEDGER: Final[Mapping[str, str]] = {
    "rfr.format": "version of this list",
    "rfr.generation": "number of the refresh",
    "rfr.epoch": "attempt that may commit",
    "rfr.state": "`open` or `published`",
    "rfr.read-fingerprint": "digest of everything that decides which requests are made",
    "rfr.publish-fingerprint": "digest of everything that decides how rows are typed",
    "rfr.opened-at": "time at which the refresh began",
    "rfr.committed-at": "time of this commit",
    "rfr.began-at": "time at which the attempt opened the refresh or took it over",
    "rfr.progressed-at": "time at which pages were last added",
    "rfr.refused-under": "rules under which the publish was refused",
    "rfr.silence": "seconds for which a live attempt commits nothing at the most",
    "rfr.ended-at": "time at which the attempt ended; missing while it works, and if it was killed",
    "rfr.outcome": "class of the error that ended the attempt",
    "rfr.error": "text of that error",
    "rfr.run-key": "run that holds the refresh",
    "rfr.restarted-by": "run that opened it by `force_restart`; missing if it was opened without",
    "rfr.base-state": "digest of the state that the sync continues; missing for a full refresh",
    "rfr.mode": "`append` or `merge`; missing for a replacement",
    "rfr.window-from": "lower bound of the cursor's values that the sync asks for",
    "rfr.window-to": "upper bound, where one is sent",
    "rfr.changes": "records of a published sync by their outcome, as JSON",
    "rfr.fixed-window": "window of the cursor's values that a backfill reads",
    "rfr.replace-where": "part of the table that is replaced; missing for the whole table",
    "rfr.dag-id": "DAG of the task that holds the refresh",
    "rfr.dag-run-id": "run of that DAG",
    "rfr.task-id": "the task",
    "rfr.map-index": "index of a mapped task, else -1",
    "rfr.try-number": "try of the task, from 1",
    "rfr.stream": "the stream",
    "rfr.host": "host and port of the source, if they are known",
    "rfr.paging": "paging of the stream, in words",
    "rfr.primary-key": "primary key of the stream",
    "rfr.retried": "errors after which the attempt sent a request again, by kind, as JSON",
    "rfr.earlier": "earlier attempts on this refresh, as JSON",
    "rfr.attempts": "attempts so far",
    "rfr.rounds": "rounds that were committed",
    "rfr.pages": "pages in the ledger, also those of partitions that were read again",
    "rfr.records": "records in the ledger",
    "rfr.bytes": "size of the ledger's files of this refresh",
    "rfr.partitions": "partitions",
    "rfr.partitions-done": "partitions whose last page was read",
    "rfr.found-pages": "pages that the attempt found when it began",
    "rfr.found-records": "records that it found",
    "rfr.found-partitions": "complete partitions that it found",
    "rfr.pages-refetched": "pages that were read twice",
    "rfr.overlap-checks": "kept pages that were compared with the source",
    "rfr.previous-rows": "rows of the last published generation",
    "rfr.published-rows": "rows of this generation in the table, once published",
    "rfr.snapshot-id": "the table's snapshot with these rows, once published",
    "rfr.past": "earlier generations, the newest first, as JSON",
}
"""Properties in the summaries of a ledger's snapshots: the state of the newest refresh."""

CATALOG: Final[Mapping[str, str]] = {
    "rfr.connect-timeout": "seconds to wait for a connection to the catalog; 10 by default",
    "rfr.read-timeout": "seconds to wait for an answer of the catalog; 60 by default",
}
"""Properties of a catalog, in an ``rfr_lake`` connection."""

FILE: Final[Mapping[str, str]] = {
    "rfr.columns": "of a ledger's file: columns of its records",
    "rfr.sink": "of a file that a sink wrote: name of the sink",
    "rfr.batch": "of a file that a sink wrote: id of the batch",
    "rfr.resend": "of a file that a sink wrote: how often its rows were sent before",
}
"""Metadata of Parquet files."""
