"""Functions that the commands of ``airflow rfr`` share: errors as exit codes, and output for terminals and scripts."""

from __future__ import annotations

import atexit
import gc
import getpass
import json
import logging
import os
import re
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from functools import cache, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import orjson
import structlog
import yaml
from sqlalchemy.exc import DBAPIError

from airflow_provider_rfr.documents import DocumentError, read_yaml
from airflow_provider_rfr.exceptions import CatalogError, ConfigurationError, RfrError
from airflow_provider_rfr.http.redaction import redact
from airflow_provider_rfr.numbers import LongNumber, dumps, holds_long_number, loads
from airflow_provider_rfr.store.engine import instant
from airflow_provider_rfr.text import printable, well_formed
from airflow_provider_rfr.timeouts import within

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

_Found = TypeVar("_Found")
_ANSWER_SECONDS: Final = 120.0
_SEE_DOCTOR: Final = "airflow rfr doctor may say why"
_CONTEXT: Final = "_AIRFLOW_PROCESS_CONTEXT"
_UNDECODED: Final = re.compile(r"[\ud800-\udfff]")
"""Surrogates, by which Python represents bytes that it can't decode."""


# Garbage collections that visit what Airflow has loaded cost 0.7 s of CPU while modules are imported. Cached, because
# a process of tests runs many commands.
_freeze: Final = cache(gc.freeze)


def command(work: Callable[[Namespace], int | None]) -> Callable[[Namespace], None]:
    """Wrap a function as a command.

    The command finds connections where Airflow's own commands do. It prints an error without a traceback, and exits
    with code 1.
    """

    @wraps(work)
    def wrapped(args: Namespace) -> None:
        try:
            from airflow_provider_rfr.connections.airflow.lookup import quiet_masking

            _freeze()
            # Names and errors of sources may have letters that the terminal's encoding lacks.
            sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
            # PyIceberg logs which library reads files, which would break up the progress bar.
            logging.getLogger("pyiceberg").setLevel(logging.WARNING)
            # Database drivers wait for a server in code that no signal interrupts.
            os.environ.setdefault("PGCONNECT_TIMEOUT", "10")
            with quiet_masking(), _logs_apart(), _with_stored_connections():
                _check_texts(args)
                code = work(args)
            sys.stdout.flush()
        except RfrError as error:
            print_error(error)
            code = 1
        except BrokenPipeError:
            # The reader has closed the pipe, as in ``| head``. Buffered text would fail again when Python ends.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            code = 1
        except DBAPIError as error:
            # Only the first line: the statement follows, with its parameters.
            reason = str(error.orig).partition("\n")[0]
            print(plain(f"the database failed: {reason}; {_SEE_DOCTOR}"), file=sys.stderr)
            code = 1
        except OSError as error:
            # The messages of client libraries may hold secrets.
            problem = f"a file or a server failed ({type(error).__name__}); {_SEE_DOCTOR}"
            if error.filename and error.strerror:
                problem = f"{os.fsdecode(error.filename)} can't be read or written: {error.strerror}"
            print(plain(problem), file=sys.stderr)
            code = 1
        except KeyboardInterrupt:
            # No message: only the command ends, and a refresh that it watched goes on.
            code = 130
        if code:
            from airflow.settings import dispose_orm

            # This exit hook closes all sessions, and fails if a thread still waits for a database in one of them.
            atexit.unregister(dispose_orm)
            sys.exit(code)

    return wrapped


def _check_texts(args: Namespace) -> None:
    """Refuse arguments with bytes that are not UTF-8, which no catalog or database accepts. Paths may have them."""
    for name, value in vars(args).items():
        texts = [item for item in (value if isinstance(value, list) else [value]) if isinstance(item, str)]
        if any(map(_UNDECODED.search, texts)):
            raise ConfigurationError(name, "has bytes that are not UTF-8", "write it in UTF-8")


def user_name() -> str:
    """Return the name of the user of this process, for histories."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        # A container may run under a user id without a name.
        return f"user {os.getuid()}"


def limit_of(args: Namespace) -> int:
    """Return the value of ``--limit``.

    :raises ConfigurationError: it is negative, or beyond the integers of a database
    """
    if not 0 <= args.limit < 2**63:
        raise ConfigurationError("--limit", f"{args.limit} is no number of rows", "give a number from 0 on")
    return int(args.limit)


def lake_command(work: Callable[[Namespace], int | None]) -> Callable[[Namespace], None]:
    """Wrap a function that opens a lake as a command.

    PyArrow is imported first, while pandas can't be imported. PyArrow would import pandas as well, which costs a second
    of CPU and which no command needs.
    """

    @command
    @wraps(work)
    def wrapped(args: Namespace) -> int | None:
        from airflow_provider_rfr.refresh.cluster import without_pandas

        with without_pandas():
            import pyarrow.dataset  # noqa: F401
        return work(args)

    return wrapped


def lake_of(args: Namespace) -> Catalog:
    """Return the catalog of the lake that ``--lake-conn-id`` names."""
    from airflow_provider_rfr.hooks.lake import LakeHook
    from airflow_provider_rfr.lake.catalog import open_catalog

    settings = LakeHook(args.lake_conn_id).get_lake_settings()
    return answered(lambda: open_catalog(settings))


def config_of(path: Path) -> Mapping[str, Any]:
    """Return the configuration of a source from a file of ``--config``, YAML or JSON.

    :raises ConfigurationError: it can't be read, or holds no mapping
    """
    problem = "must hold a mapping"
    try:
        text = path.read_text(encoding="utf-8")
        config = json.loads(text) if path.suffix == ".json" else read_yaml(text)
        if isinstance(config, Mapping):
            return config
    except OSError as error:
        problem = f"can't be read: {error.strerror}"
    except (DocumentError, ValueError, RecursionError) as error:
        # Not the message of the JSON parser, which may quote the text.
        problem = f"is not {'YAML' if isinstance(error, DocumentError) else 'JSON'}"
    raise ConfigurationError("--config", f"{path} {problem}", "write the fields of the source's configuration")


def answered(ask: Callable[[], _Found]) -> _Found:
    """Call ``ask`` in a thread, and return its answer.

    So Ctrl-C works: database drivers wait in code that no signal interrupts.

    :raises CatalogError: there is no answer within two minutes
    """
    try:
        return within(_ANSWER_SECONDS, ask)
    except TimeoutError as error:
        raise CatalogError(f"the catalog gives {error}; {_SEE_DOCTOR}") from None


@contextmanager
def _logs_apart() -> Iterator[None]:
    """Send Airflow's logs to standard error.

    Airflow logs to standard output, where a script reads the output of the command.
    """
    config = structlog.get_config()

    def to_stderr(*names: Any) -> Any:
        with redirect_stdout(sys.stderr):
            return config["logger_factory"](*names)

    structlog.configure(logger_factory=to_stderr, processors=[_without_noise, *config["processors"]])
    of_connections = logging.getLogger("airflow.sdk.definitions.connection")
    of_connections.addFilter(_is_no_noise)
    handlers = [handler for handler in logging.getLogger().handlers if getattr(handler, "stream", None) is sys.stdout]
    for handler in handlers:
        handler.setStream(sys.stderr)  # type: ignore[attr-defined]
    try:
        yield
    finally:
        of_connections.removeFilter(_is_no_noise)
        structlog.configure(logger_factory=config["logger_factory"], processors=config["processors"])


def _without_noise(logger: Any, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Drop Airflow's messages about each connection of our types."""
    if str(event["event"]).startswith("Connection schemes (type: "):
        raise structlog.DropEvent
    return event


def _is_no_noise(record: logging.LogRecord) -> bool:
    """Tell whether a log record is not Airflow's traceback about extra fields that it can't read.

    Commands report such fields in an error message of their own.
    """
    return not str(record.msg).startswith("Failed to deserialize extra")


@contextmanager
def _with_stored_connections() -> Iterator[None]:
    """Mark this process as a server, because only in servers Airflow looks for connections in its database."""
    from airflow_provider_rfr.connections.airflow.lookup import has_airflow_database

    if _CONTEXT in os.environ or not has_airflow_database():
        yield
        return
    os.environ[_CONTEXT] = "server"
    try:
        yield
    finally:
        del os.environ[_CONTEXT]


def plain(text: str) -> str:
    """Return the text on one line, without characters that control a terminal."""
    return printable(" ".join(text.split()))


def print_error(error: RfrError, secrets: Sequence[str] = ()) -> None:
    """Print an error on standard error; it may have a line for each problem.

    :param secrets: values to mask, because the message may repeat them
    """
    print("\n".join(map(plain, redact(str(error), secrets).splitlines())), file=sys.stderr)


def say(text: str) -> None:
    """Print one line for people, and flush it, so that a pipe gets it at once."""
    print(plain(text), flush=True)


def say_lines(text: str) -> None:
    """Print lines for people as they are, but without characters that control a terminal."""
    print("\n".join(map(printable, text.splitlines())))


def write_text(text: str) -> None:
    """Write a text for a program to standard output as it is, in UTF-8, whatever the terminal's encoding."""
    sys.stdout.buffer.write(well_formed(text).encode())


def print_value(value: Any, args: Namespace, empty: str = "") -> None:
    """Print a list or a mapping: as JSON or YAML if ``--output`` asks for that, else a line for each entry.

    :param empty: text to print for an empty value; nothing is printed if it is empty, too
    """
    if not print_data(value, args) and (text := "\n".join(_lines_of(value)) or empty):
        print(text)


def print_columns(rows: Sequence[Mapping[str, Any]], empty: str) -> None:
    """Print rows as a table with a header line; empty columns are left out.

    :param empty: text to print if there are no rows
    """
    every = dict.fromkeys(name for row in sorted(rows, key=len, reverse=True) for name in row)
    names = [name for name in every if any(row.get(name) not in (None, "") for row in rows)]
    cells = ([plain("" if row.get(name) is None else str(row[name])) for name in names] for row in rows)
    lines = [[name.upper() for name in names], *cells]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines if rows else ():
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
    if not rows:
        say(empty)


def print_data(value: Any, args: Namespace) -> bool:
    """Print the value as JSON or YAML where ``--output`` asks for that; else print nothing, and return False."""
    if args.output not in ("json", "yaml"):
        return False
    text = json_of(value)
    if args.output == "yaml":
        text = yaml.dump(loads(text.encode(), parse_int=int), Dumper=_DigitsDumper, sort_keys=False).rstrip()
    print(text)
    return True


class _DigitsDumper(yaml.SafeDumper):
    """A YAML dumper that writes all digits of long numbers."""


_DigitsDumper.add_representer(
    LongNumber, lambda dumper, number: dumper.represent_scalar("tag:yaml.org,2002:float", number.text)
)


def json_of(value: Any) -> str:
    """Return the value as indented JSON, with all digits of long numbers if it is JSON without larger integers."""
    if holds_long_number(value):
        # Refused for an integer beyond 64 bits, and for a value that is printed as text, such as a path.
        with suppress(TypeError):
            return dumps(value, orjson.OPT_INDENT_2).decode()
    return json.dumps(value, indent=2, default=str)


def print_schema(file: Path, args: Namespace) -> None:
    """Print a file with a JSON schema: as it is, unless ``--output`` asks for YAML."""
    text = file.read_text(encoding="utf-8").rstrip()
    if args.output != "yaml" or not print_data(json.loads(text), args):
        print(text)


def _lines_of(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        for name, item in value.items():
            if isinstance(item, (Mapping, list)):
                yield f"{name}:" if item else f"{name}: none"
                yield from (f"  {line}" for line in _lines_of(item))
            else:
                yield f"{name}: {'none' if item is None else plain(str(item))}"
    elif isinstance(value, list):
        for item in value:
            named = item.items() if isinstance(item, Mapping) else ((None, item),)
            shown = ((name, plain(str(text))) for name, text in named if text is not None)
            yield "  ".join(text if name is None else f"{name}={text}" for name, text in shown)


def moment(milliseconds: int | None) -> str | None:
    """Return a time of the control store, in milliseconds, as text in ISO format."""
    return None if milliseconds is None else instant(milliseconds).isoformat(timespec="seconds")
