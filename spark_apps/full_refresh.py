"""Refresh tables from an API, resumably: ``spark-submit full_refresh.py --config FILE``, or plain ``python``.

FILE is YAML or JSON with ``source``, ``streams``, ``target``, ``lake``, ``options`` (docs/resumable_full_refresh.md).
Draws a bar on a terminal, prints a line for each round elsewhere, and as the last line one JSON object of figures,
after a sentence on standard error where it failed on a terminal.
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

if __package__ in (None, ""):
    # Run from a clone or from inside the installed package: the package itself may not be on the path.
    for parent in Path(__file__).resolve().parents:
        if (parent / "airflow_provider_rfr" / "__init__.py").is_file() and str(parent) not in sys.path:
            sys.path.append(str(parent))
            break


def main() -> int:
    """Read the command line and run."""
    parser = argparse.ArgumentParser(description="Refresh tables from an API; the next run resumes one that died.")
    parser.add_argument("--config", required=True, metavar="FILE", help="YAML or JSON document of the refresh")
    arguments = parser.parse_args()
    from airflow_provider_rfr.refresh.application import failed
    from airflow_provider_rfr.refresh.application import main as run

    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        # Run by plain python, which starts its JVM itself; under spark-submit it runs already.
        from airflow_provider_rfr.exceptions import PreflightError
        from airflow_provider_rfr.preflight import check_machine

        try:
            check_machine()
        except PreflightError as error:
            return failed(error)
    return run(arguments.config, began=BEGAN, open_token_store=open_token_store, open_history=open_history)


def open_token_store(url: str) -> RefreshTokens:
    """Open where refresh tokens are kept; few sources need it, and its imports take a while."""
    from airflow_provider_rfr.store.leases import RefreshTokens

    return RefreshTokens(url)


def open_history(url: str, catalog: Catalog) -> History:
    """Open the control store, in which rows of the history tables wait."""
    from airflow_provider_rfr.history import History
    from airflow_provider_rfr.store.engine import open_store

    return History(open_store(url), catalog)


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # All is committed and reported. An ordinary exit would wait for threads that may hang in the network.
    os._exit(code)
