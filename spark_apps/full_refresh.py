"""Refresh tables from an API, resumably: ``spark-submit full_refresh.py --config FILE``, or plain ``python``.

FILE is YAML or JSON with ``source``, ``streams``, ``target``, ``lake``, ``options`` (docs/load_at_a_shell.md).
It draws a progress bar on a terminal, and prints a line for each round elsewhere. The last line is one JSON object of
figures. A failure on a terminal is also explained in a sentence on standard error.
Exit codes: 0 published, 1 failed (a retry continues), 2 the configuration is wrong or Java is missing, 3 a newer
attempt took over.
"""

from __future__ import annotations

import time

BEGAN = time.monotonic()

import argparse  # noqa: E402
import os  # noqa: E402
import sys  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import TYPE_CHECKING  # noqa: E402

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

    from airflow_provider_rfr.history import History
    from airflow_provider_rfr.store.leases import RefreshTokens

if __package__ in (None, "") and "__file__" in globals():
    # Run from a clone or from inside the installed package: the package itself may not be on the path.
    for parent in Path(__file__).resolve().parents:
        if (parent / "airflow_provider_rfr" / "__init__.py").is_file() and str(parent) not in sys.path:
            sys.path.append(str(parent))
            break


def main() -> None:
    """Read the command line, run, and end the process, unless it belongs to another program."""
    parser = argparse.ArgumentParser(
        description="Refresh tables from an API; the next run resumes one that died.", allow_abbrev=False
    )
    parser.add_argument("--config", required=True, metavar="FILE", help="YAML or JSON document of the refresh")
    # Glue adds arguments of its own.
    arguments, _ = parser.parse_known_args()
    # The package may lie next to the document, for services without an option like --py-files.
    sys.path.append(str(Path(arguments.config).absolute().with_name("airflow_provider_rfr.zip")))
    from airflow_provider_rfr.refresh.process import is_guest

    belongs_to_another = is_guest()
    code = run_document(arguments.config, check=not belongs_to_another)
    sys.stdout.flush()
    sys.stderr.flush()
    if not belongs_to_another:
        # All is committed and reported. An ordinary exit would wait for threads that may hang in the network.
        os._exit(code)
    if code:
        sys.exit(code)


def run_document(path: str, *, check: bool) -> int:
    """Run the document, and return the exit code.

    :param check: check the machine before this process starts Spark
    """
    from airflow_provider_rfr.refresh.application import failed
    from airflow_provider_rfr.refresh.application import main as run

    if check and "PYSPARK_GATEWAY_PORT" not in os.environ:
        # Plain python starts the JVM itself, and needs Java for it. Under spark-submit a JVM runs already.
        from airflow_provider_rfr.exceptions import PreflightError
        from airflow_provider_rfr.preflight import check_machine

        try:
            check_machine()
        except PreflightError as error:
            return failed(error)
    return run(path, began=BEGAN, open_token_store=open_token_store, open_history=open_history)


def open_token_store(url: str) -> RefreshTokens:
    """Open the control store's table of refresh tokens. It is imported late, because few sources need it."""
    from airflow_provider_rfr.store.leases import RefreshTokens

    return RefreshTokens(url)


def open_history(url: str, catalog: Catalog) -> History:
    """Open the history tables of a catalog, whose new rows wait in the control store."""
    from airflow_provider_rfr.history import History
    from airflow_provider_rfr.store.engine import open_store

    return History(open_store(url), catalog)


if __name__ == "__main__":
    main()
