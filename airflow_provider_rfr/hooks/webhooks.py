"""The hook of commit webhooks, which enqueues the deliveries of commits, and sends them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import conf
from airflow.sdk import BaseHook

from airflow_provider_rfr.compat import lock_requests
from airflow_provider_rfr.connections.airflow.lookup import mask_secrets
from airflow_provider_rfr.exceptions import ConfigurationError, DeliveryError, RfrError, TriggerConfigError
from airflow_provider_rfr.hooks.api import http_settings
from airflow_provider_rfr.hooks.control_store import ControlStoreHook
from airflow_provider_rfr.hooks.dag_arguments import file_folders, place_of, possible_places
from airflow_provider_rfr.hooks.lake import LakeHook

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator
    from pyiceberg.catalog import Catalog

    from airflow_provider_rfr.store.deliveries import EndpointKey
    from airflow_provider_rfr.store.engine import ControlStore
    from airflow_provider_rfr.webhooks.block import Endpoint, TriggerBlock
    from airflow_provider_rfr.webhooks.dispatcher import Dispatcher
    from airflow_provider_rfr.webhooks.operations import DeliverySummary, Notifier
    from airflow_provider_rfr.webhooks.outbox import StartFrom


Triggers = Mapping[str, Any] | Sequence[Any] | str | Path
"""A triggers block, or the path of a file with one."""


def check_triggers(triggers: Triggers, folders: Sequence[Path] = ()) -> TriggerBlock:
    """Read a block and try its templates, at the parse of a DAG: no value is decrypted, and nothing is sent.

    :param folders: folders in which a relative path is looked up
    :raises TriggerConfigError: with every problem
    :raises SealError: a sealed block holds something in plain text that must be sealed
    """
    from airflow_provider_rfr.webhooks import validation
    from airflow_provider_rfr.webhooks.sealing import check_sealed

    if isinstance(triggers, (str, Path)):
        if (problem := why_no_file(triggers, folders)) is not None:
            raise TriggerConfigError(str(triggers), problem, "name a YAML or JSON file with a block", place="triggers")
        block = validation.check_file(place_of(triggers, folders))
    else:
        block = validation.check_triggers(triggers)
    if block.is_sealed:
        check_sealed(block.dump())
    return block


def why_no_file(path: str | Path, folders: Sequence[Path] = ()) -> str | None:
    """Return the reason why a path is not that of a file; None if it is.

    :param folders: folders in which a relative path is looked up
    """
    try:
        file = place_of(path, folders)
        if file.is_file():
            return None
        if file.is_dir():
            return "this is a folder, not a file"
        looked = f" in {' or in '.join(map(str, folders))}" if len(possible_places(path, folders)) > 1 else ""
        return f"there is no such file{looked}"
    except (OSError, RuntimeError, ValueError):
        # The path is too long, starts with the home of an unknown user, or is in a folder that this user can't read.
        return "this machine can't look for such a file"


class WebhookHook(BaseHook):
    """A hook for the deliveries of one triggers block, for tables of one lake.

    A file is read, and sealed values are decrypted, at their first use: in the running task, and never while a DAG is
    parsed. So the next attempt uses a corrected file.

    :param triggers: the block, or the path of its file
    :param task: the task that has the block; a relative path is looked up in its :func:`file_folders`. None at a shell
    """

    def __init__(
        self,
        triggers: Triggers,
        lake_conn_id: str = LakeHook.default_conn_name,
        control_store_conn_id: str | None = None,
        *,
        task: BaseOperator | None = None,
    ) -> None:
        super().__init__()
        self._triggers = triggers
        self._task = task
        self._lake_conn_id = lake_conn_id
        self._control_store_conn_id = control_store_conn_id
        self._dispatcher: Dispatcher | None = None
        self._unread: dict[str, str] = {}

    @cached_property
    def block(self) -> TriggerBlock:
        """Return the block with its values in plain text; they are masked in this process's log."""
        from airflow_provider_rfr.webhooks.sealing import open_sealed

        folders = () if self._task is None else file_folders(self._task)
        block = check_triggers(self._triggers, folders).opened(open_sealed)
        mask_secrets(block.secret_texts())
        return block

    @cached_property
    def store(self) -> ControlStore:
        return ControlStoreHook(self._control_store_conn_id).get_store()

    @cached_property
    def catalog(self) -> Catalog:
        from airflow_provider_rfr.lake.catalog import open_catalog

        return open_catalog(LakeHook(self._lake_conn_id).get_lake_settings())

    @property
    def lake(self) -> str:
        """Return the catalog's name, by which the store knows it."""
        return LakeHook(self._lake_conn_id).get_lake_settings().name

    def all_tables(self) -> list[str]:
        """Return every table of the lake that a refresh has published to, and every one that the store knows."""
        from airflow_provider_rfr.lake.catalog import tables_with_property
        from airflow_provider_rfr.lake.target import PUBLISHED_PROPERTY
        from airflow_provider_rfr.webhooks import operations

        recorded = {row.key.table for row in operations.endpoints(self.store, self.lake)}
        return sorted(recorded.union(tables_with_property(self.catalog, PUBLISHED_PROPERTY)))

    def known_tables(self) -> list[str]:
        """Return every table of the lake for which the store knows an endpoint of this block."""
        from airflow_provider_rfr.webhooks import operations

        recorded = {row.key for row in operations.endpoints(self.store, self.lake)}
        of_block = self.endpoints({key.table for key in recorded})
        return sorted({key.table for key in recorded & of_block.keys()})

    def enqueue(self, tables: Sequence[str], start_from: StartFrom = "latest") -> int:
        """Create the missing deliveries of the tables' commits in the control store; return their number.

        A table that can't be read holds up no other: its error is kept for :meth:`raise_unread`.

        :param start_from: the commit with which an endpoint begins that is new to a table: the ``latest``, which is the
            default, or the ``earliest``
        """
        from sqlalchemy.exc import DBAPIError

        from airflow_provider_rfr.webhooks.outbox import enqueue_commits

        endpoints, catalog, lake = self._register_endpoints(tables), self.catalog, self.lake
        enqueued, self._unread = 0, {}
        for table in tables:
            try:
                enqueued += enqueue_commits(self.store, catalog, lake, table, endpoints, start_from=start_from)
            except DBAPIError:
                # The database of the store or of a SQL catalog failed, so every other table would fail as well.
                raise
            except Exception as error:  # noqa: BLE001 - each catalog and file store fails in its own way
                self._unread[table] = str(error) if isinstance(error, RfrError) else type(error).__name__
                self.log.error("The commits of %s can't be read: %s", table, self._unread[table])
        return enqueued

    def raise_unread(self) -> None:
        """Raise an error for commits that could not be read. Call it once all other commits have been delivered.

        :raises DeliveryError: commits of some tables could not be read
        """
        if self._unread:
            problems = "; ".join(f"{table}: {problem}" for table, problem in self._unread.items())
            raise DeliveryError(f"the commits of {len(self._unread)} table(s) can't be read: {problems}")

    def count_pending(self, tables: Sequence[str]) -> int:
        """Enqueue deliveries of new commits, and count the pending deliveries of the tables.

        :raises DeliveryError: commits of some tables could not be read
        """
        from airflow_provider_rfr.store.deliveries import Selection
        from airflow_provider_rfr.webhooks import operations

        self.enqueue(tables)
        self.raise_unread()
        selections = (
            Selection(lake=key.lake, tables=(key.table,), trigger=key.trigger, block=key.block)
            for key in self.endpoints(tables)
        )
        return sum(operations.counts(self.store, selection)["pending"] for selection in selections)

    def deliver(
        self, tables: Sequence[str], *, patience: float | None = 0.0, notify_later: bool = False
    ) -> DeliverySummary:
        """Send all due deliveries, then delete those that ended before the retention time.

        :param patience: seconds to wait for retries; None for as long as they take
        :param notify_later: leave dead letters to :meth:`notify`, here or in another task
        """
        from airflow_provider_rfr.webhooks import operations
        from airflow_provider_rfr.webhooks.dispatcher import Dispatcher
        from airflow_provider_rfr.webhooks.operations import record_deliveries
        from airflow_provider_rfr.webhooks.outbox import release_snapshots

        endpoints, retention = self._register_endpoints(tables), retention_seconds()
        # The dispatcher's threads look up connections. Those that outlive an interrupt do so while the task ends.
        lock_requests()
        dispatcher = self._dispatcher = Dispatcher(
            self.store,
            endpoints,
            connections=http_settings,
            allowed_hosts=configured_hosts(),
            notify_later=notify_later,
        )
        try:
            summary = dispatcher.deliver_due(until_empty=patience != 0.0, patience=patience)
        finally:
            # Also after a failure, because some may have been sent. If writing fails, the next delivery writes it.
            for table in tables:
                try:
                    release_snapshots(self.store, self.catalog, self.lake, table, endpoints)
                except Exception as error:  # noqa: BLE001 - each catalog and store fails in its own way
                    problem = type(error).__name__
                    self.log.warning("%s: the table's hold on sent snapshots can't be released: %s", table, problem)
            record_deliveries(self.store, self.catalog, self.lake, endpoints)
        operations.forget(self.store, retention)
        return summary

    def notify(self, tables: Sequence[str], notifier: Notifier) -> list[str]:
        """Call the notifier for each dead letter that was not notified; return its errors without their texts.

        A dead letter for which the notifier raised is notified again the next time.
        """
        from airflow_provider_rfr.store.deliveries import load_endpoints
        from airflow_provider_rfr.webhooks.operations import notify_dead_letters

        with self.store.read() as connection:
            rows = load_endpoints(connection, self.endpoints(tables))
        return notify_dead_letters(self.store, [row.id for row in rows.values()], notifier)

    def stop(self) -> None:
        """Claim no more deliveries; attempts under way end, and their results are written."""
        if self._dispatcher is not None:
            self._dispatcher.stop()

    def endpoints(self, tables: Iterable[str]) -> dict[EndpointKey, Endpoint]:
        from airflow_provider_rfr.webhooks.block import valid_name
        from airflow_provider_rfr.webhooks.outbox import endpoints_of

        # The default name of a block. For a file it is its stem, which is the same in any folder, in a DAG and at a
        # shell.
        dag_id = "" if self._task is None else self._task.dag_id
        name = valid_name(Path(self._triggers).stem if isinstance(self._triggers, (str, Path)) else dag_id)
        lake, block = self.lake, self.block
        return {key: endpoint for table in tables for key, endpoint in endpoints_of(lake, table, block, name).items()}

    def _register_endpoints(self, tables: Sequence[str]) -> dict[EndpointKey, Endpoint]:
        """Record in the store where the endpoints are declared, and return them."""
        from airflow_provider_rfr.webhooks.outbox import register_endpoints

        endpoints = self.endpoints(tables)
        # The place in a task leaves out the file's folder, which changes with each version of a DAG bundle.
        place = "" if self._task is None else f"task {self._task.task_id} of DAG {self._task.dag_id}"
        if isinstance(self._triggers, (str, Path)):
            place = f"{place} ({self._triggers})" if place else str(Path(self._triggers).expanduser().absolute())
        register_endpoints(self.store, endpoints, place)
        return endpoints


def configured_hosts() -> list[str]:
    """Return ``[rfr] webhook_allowed_hosts``: private addresses that webhooks and HTTP sinks may call.

    An entry is a host, an address or a network.
    """
    text = conf.get("rfr", "webhook_allowed_hosts", fallback="") or ""
    return [host.strip() for host in text.split(",") if host.strip()]


def retention_seconds() -> float:
    """Return the seconds for which ended deliveries are kept, from ``[rfr] webhook_retention_days``.

    :raises ConfigurationError: the option is not a number of days above 0
    """
    text = conf.get("rfr", "webhook_retention_days", fallback="30")
    try:
        days = float(text)
    except ValueError:
        days = 0.0
    if not 0 < days < math.inf:
        raise ConfigurationError("[rfr] webhook_retention_days", f"{text!r} is no number of days", "write e.g. 30")
    return days * 86400
