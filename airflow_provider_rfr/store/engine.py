"""The control store: how it is opened, and how its transactions run.

SQLite: every writing transaction begins with the write lock (``BEGIN IMMEDIATE``), so none has to be repeated half way;
the journal is a WAL, so readers never wait. PostgreSQL: READ COMMITTED and row locks. A transaction is a function,
because it is run again after an error that may pass.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from itertools import islice
from typing import Any, Final, Protocol, TypeVar

from sqlalchemy import Connection, Engine, Table, create_engine, delete, event, false, insert, inspect, select, text
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError, OperationalError
from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_random_exponential

from airflow_provider_rfr.exceptions import ConfigurationError, StoreUnreachableError
from airflow_provider_rfr.store.tables import METADATA, SCHEMA_VERSION, SETTINGS
from airflow_provider_rfr.timeouts import end_refused_commits, limit_waits


class Clock(Protocol):
    """A wall clock, and a monotonic clock that never goes backwards."""

    def now(self) -> float:
        """Return seconds since 1970, UTC. The value may jump, also backwards."""

    def monotonic(self) -> float:
        """Return seconds since an arbitrary moment; only differences have a meaning."""

    def sleep(self, seconds: float) -> None:
        """Block for so many seconds."""


class SystemClock:
    """The machine's clocks."""

    def now(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(max(0.0, seconds))


def instant(milliseconds: int) -> datetime:
    """Convert a time of the control store, in milliseconds since 1970, to UTC."""
    return datetime.fromtimestamp(milliseconds / 1000, timezone.utc)


_T = TypeVar("_T")
_CHUNK: Final = 500
_BUSY_SECONDS: Final = 30.0
_TABLES_LOCK: Final = 0x5246_5253
_REPEATABLE: Final = frozenset({"40001", "40P01", "55P03", "57P01", "57P02", "57P03"})
"""PostgreSQL's codes for conflicts, deadlocks and a server that is stopping or starting."""
# A server that crashed may count from a lower number again: a number that it has not reached was never committed.
_STATE_OF_TRANSACTION: Final = text(
    "SELECT CASE WHEN :number < txid_current() THEN txid_status(:number) ELSE 'aborted' END"
)
_READING: Final = "rfr_reading"


class ControlStore:
    """A database with the package's tables; thread-safe, and usable after a fork.

    :ivar clock: the clock of leases and waits; None for the database's own, which all dispatchers share
    """

    def __init__(self, engine: Engine, clock: Clock | None = None) -> None:
        self._engine = engine
        self._pid = os.getpid()
        self.clock = clock
        self.is_postgres = engine.dialect.name == "postgresql"

    def __repr__(self) -> str:
        return f"ControlStore({self._engine.dialect.name})"

    def run(self, work: Callable[[Connection], _T], *, patience: float = 60.0) -> _T:
        """Run ``work`` in one writing transaction, and retry if the database is busy or unreachable.

        ``work`` may run several times, so it must have no effects except what it writes through the connection. It is
        committed once: where the answer to a commit is lost, the server is asked whether the commit was done.

        :param patience: seconds of retries, after which the database's error is raised
        """
        retrying = Retrying(
            retry=retry_if_exception(_may_help),
            stop=stop_after_delay(patience),
            wait=wait_random_exponential(multiplier=0.05, max=2.0),
            reraise=True,
        )
        tried: list[tuple[int, _T]] = []

        def once() -> _T:
            with self._forked_engine().begin() as connection:
                if tried and _is_committed(connection, tried[0][0]):
                    return tried[0][1]
                result = work(connection)
                # SQLite is no server: a COMMIT that raises an error was not done.
                if self.is_postgres:
                    number = connection.execute(text("SELECT txid_current_if_assigned()")).scalar_one()
                    tried[:] = [] if number is None else [(number, result)]
                return result

        return retrying(once)

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """Open a read transaction: a consistent snapshot that blocks no writer."""
        with self._forked_engine().connect() as connection:
            yield connection.execution_options(**{_READING: True})

    def now(self, connection: Connection) -> int:
        """Return milliseconds since 1970 by the clock that all users of this store share."""
        if self.clock is not None:
            return int(self.clock.now() * 1000)
        if self.is_postgres:
            moment = connection.execute(text("SELECT extract(epoch FROM clock_timestamp()) * 1000")).scalar_one()
            return int(moment)
        return int(time.time() * 1000)

    def check_writable(self) -> None:
        """Check that the store can be written, without a change.

        :raises DBAPIError: the database is read-only or can't be reached
        """
        self.run(lambda connection: connection.execute(delete(SETTINGS).where(false())), patience=5.0)

    def close(self) -> None:
        """Close the idle connections; the store can be used again."""
        self._engine.dispose()

    def _forked_engine(self) -> Engine:
        if self._pid != os.getpid():
            # Connections of the parent must neither be used nor closed here.
            self._pid = os.getpid()
            self._engine.dispose(close=False)
        return self._engine


def _is_committed(connection: Connection, number: int) -> bool:
    """Tell whether PostgreSQL committed the transaction of this number.

    :raises OperationalError: it has not ended yet, because the server has not noticed that its client is gone
    """
    state = connection.execute(_STATE_OF_TRANSACTION, {"number": number}).scalar_one()
    if state == "in progress":
        raise OperationalError("COMMIT", {}, TimeoutError("the commit got no answer, and is still in progress"))
    return bool(state == "committed")


def in_chunks(items: Iterable[_T]) -> Iterator[list[_T]]:
    """Yield the items in lists of at most 500, because databases limit the parameters of a statement."""
    rest = iter(items)
    while chunk := list(islice(rest, _CHUNK)):
        yield chunk


def _insert(connection: Connection, table: Table) -> Any:
    return (postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert)(table)


def insert_missing(connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]]) -> None:
    """Insert the rows whose keys are not there; the others are not changed."""
    if rows:
        connection.execute(_insert(connection, table).on_conflict_do_nothing(), list(rows))


def upsert(connection: Connection, table: Table, row: Mapping[str, Any], *changed: str) -> None:
    """Insert the row; if its primary key exists, update these columns of it, by default all that ``row`` has."""
    keys = table.primary_key.columns.keys()
    values = {name: row[name] for name in (changed or row) if name not in keys}
    connection.execute(_insert(connection, table).values(**row).on_conflict_do_update(index_elements=keys, set_=values))


_NEW_STORE: Final = "name a database without tables of this package"
_EXAMPLES: Final = "write e.g. sqlite:////data/rfr.db or postgresql+psycopg2://user:password@host/rfr"


def address_of(url: str) -> URL:
    """Parse and check the URL of a control store, which need not exist.

    :raises ConfigurationError: no store can have this address, or its driver is not installed
    """
    try:
        address = make_url(url.replace("postgres://", "postgresql://", 1) if url.startswith("postgres://") else url)
    except (ArgumentError, ValueError):
        raise ConfigurationError("control store", "its URL can't be read", _EXAMPLES) from None
    kind, driver = address.get_backend_name(), address.get_driver_name()
    if kind not in ("sqlite", "postgresql"):
        raise ConfigurationError("control store", f"{kind} is not supported", _EXAMPLES)
    if kind == "sqlite" and address.database in (None, "", ":memory:"):
        raise ConfigurationError("control store", "a store in memory is lost with its process", _EXAMPLES)
    if "@" in (address.host or ""):
        # The host has the end of the password, which the driver would show in its error.
        raise ConfigurationError("control store", "its URL has an @ in its user or password", "write it as %40")
    if "\0" in f"{address.host}{address.database}":
        raise ConfigurationError("control store", "its address holds a null character", _EXAMPLES)
    try:
        dialect = address.get_dialect()
        dialect.import_dbapi()
    except (ImportError, NoSuchModuleError):
        raise ConfigurationError("control store", f"the driver {driver} is not installed", _EXAMPLES) from None
    if dialect.is_async:
        raise ConfigurationError("control store", f"the driver {driver} is for asynchronous programs", _EXAMPLES)
    try:
        dialect().create_connect_args(address)
    except (ArgumentError, ValueError, TypeError):
        raise ConfigurationError("control store", "its URL can't be read", _EXAMPLES) from None
    return address


def open_store(url: str, *, clock: Clock | None = None) -> ControlStore:
    """Open the store, and make the tables that it lacks; any number of processes may do so at once.

    :param url: URL for SQLAlchemy, ``sqlite:///`` or ``postgresql://``
    :raises ConfigurationError: it can't be opened, or a version of this package with other tables made it
    :raises StoreUnreachableError: it does not answer now
    """

    def make_tables(connection: Connection) -> int | None:
        if connection.dialect.name == "postgresql":
            # "IF NOT EXISTS" checks before it creates, and two processes can check at the same time.
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _TABLES_LOCK})
        version = _version(connection)
        if version in (None, SCHEMA_VERSION):
            METADATA.create_all(connection)
        if version is None:
            connection.execute(insert(SETTINGS).values(name="schema", value=str(SCHEMA_VERSION)))
        return SCHEMA_VERSION if version is None else version

    def make(store: ControlStore) -> int | None:
        # Not for long: a wrong address should be reported soon.
        version = store.run(make_tables, patience=5.0)
        if version == SCHEMA_VERSION and not store.is_postgres:
            _use_wal(store)
        return version

    return _opened(url, clock, make)[0]


def find_store(url: str) -> ControlStore | None:
    """Open a control store as :func:`open_store` does; None if the database has no tables of this package.

    Nothing is written, and no writer is waited for.
    """

    def ask(store: ControlStore) -> int | None:
        with store.read() as connection:
            return _version(connection)

    store, version = _opened(url, None, ask)
    if version is not None:
        return store
    store.close()
    return None


def _opened(
    url: str, clock: Clock | None, version_of: Callable[[ControlStore], int | None]
) -> tuple[ControlStore, int | None]:
    """Return the store, and the version of its tables; None as the version if there are none."""
    address = address_of(url)
    store, remedy = ControlStore(_new_engine(address), clock), ""
    kind: type[ConfigurationError] = ConfigurationError
    try:
        version = version_of(store)
    except ConfigurationError:
        store.close()
        raise
    except (DBAPIError, sqlite3.Error) as error:
        reason = error.orig if isinstance(error, DBAPIError) else error
        problem = str(reason).strip().partition("\n")[0] or type(reason).__name__
        password = address.password
        problem = problem.replace(password, "***") if password else problem
        if _may_help(error):
            kind = StoreUnreachableError
    else:
        if version is None or version == SCHEMA_VERSION:
            return store, version
        problem = f"it has version {version} of the tables, this package knows {SCHEMA_VERSION}"
        remedy = "upgrade this package" if version > SCHEMA_VERSION else _NEW_STORE
    store.close()
    raise kind("control store", f"can't be opened ({address.get_backend_name()}): {problem}", remedy)


def _new_engine(address: URL) -> Engine:
    options: dict[str, Any] = {"hide_parameters": True}
    if address.get_backend_name() == "sqlite":
        # Made readable for its owner alone; SQLite gives its other files the same rights. Errors are left to SQLite.
        with suppress(OSError):
            os.close(os.open(str(address.database), os.O_CREAT | os.O_EXCL, 0o600))
        options["connect_args"] = {"timeout": _BUSY_SECONDS}
    else:
        # A connection that the server has closed meanwhile is noticed before a transaction begins on it.
        options |= {"pool_pre_ping": True, "isolation_level": "READ COMMITTED"}
        if address.get_driver_name() == "psycopg2":
            options["executemany_mode"] = "values_plus_batch"
    engine = create_engine(address, **options)
    limit_waits(engine)
    end_refused_commits(engine)
    if address.get_backend_name() == "sqlite":

        @event.listens_for(engine, "connect")
        def set_up(connection: Any, record: object) -> None:
            # The driver's own idea of when transactions begin would take the write lock too late.
            connection.isolation_level = None
            connection.execute(f"PRAGMA busy_timeout = {int(_BUSY_SECONDS * 1000)}")
            connection.execute("PRAGMA foreign_keys = ON")
            # A killed process loses nothing by it; after a power cut the newest commits may be missing, never a part
            # of one.
            connection.execute("PRAGMA synchronous = NORMAL")

        @event.listens_for(engine, "begin")
        def begin(connection: Connection) -> None:
            reading = connection.get_execution_options().get(_READING)
            connection.exec_driver_sql("BEGIN" if reading else "BEGIN IMMEDIATE")

    return engine


def _use_wal(store: ControlStore) -> None:
    """Set SQLite's journal mode WAL, in which readers never wait for writers.

    The mode is kept in the file, so it is set only in a store that was accepted.
    """
    end = time.monotonic() + _BUSY_SECONDS
    while True:
        with store.read() as connection:
            # Not within a transaction, which SQLAlchemy would begin.
            driver: Any = connection.connection.dbapi_connection
            try:
                driver.execute("PRAGMA journal_mode = WAL")
                return
            except sqlite3.OperationalError as error:
                # Two processes change the journal mode at once: the busy timeout doesn't cover this.
                if "locked" not in str(error) or time.monotonic() > end:
                    raise
        time.sleep(0.02)


def _version(connection: Connection) -> int | None:
    """Return the version of the tables; None if there are none."""
    if not inspect(connection).has_table(SETTINGS.name):
        return None
    version = connection.execute(select(SETTINGS.c.value).where(SETTINGS.c.name == "schema")).scalar_one_or_none()
    if version is not None and not version.isdecimal():
        raise ConfigurationError("control store", "the version of its tables can't be read", _NEW_STORE)
    return None if version is None else int(version)


def _may_help(error: BaseException) -> bool:
    """Tell whether the same transaction may succeed if it is run again."""
    if not isinstance(error, DBAPIError):
        return False
    code = getattr(error.orig, "pgcode", None)
    if error.connection_invalidated or code in _REPEATABLE:
        return True
    if isinstance(error.orig, sqlite3.Error):
        return any(word in str(error.orig) for word in ("locked", "busy"))
    # Without a code the server was never reached: it is starting, or the network is down.
    return isinstance(error, OperationalError) and code is None
