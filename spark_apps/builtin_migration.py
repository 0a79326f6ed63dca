"""Deploy built-in objects, with SQL on Spark: ``spark-submit builtin_migration.py --config FILE``, or plain ``python``.

FILE is YAML or JSON with ``lake``, ``store``, ``objects`` or ``spec``, ``plan``, ``policies`` (docs/builtins.md). With
``refresh: {names: [...], force: true}`` it refreshes materialized views instead of deploying; without names, all that
are deployed. FILE may hold secrets, so only its owner should be able to read it. The last line of output is one JSON
object of figures.
Exit codes: 0 done, or nothing to do; 1 failed: finished steps stay done, and the next run continues.
"""

from __future__ import annotations

import time

BEGAN = time.monotonic()

import argparse  # noqa: E402
import os  # noqa: E402
import sys  # noqa: E402
from pathlib import Path  # noqa: E402

if __package__ in (None, ""):
    # Run from a clone or from inside the installed package: the package itself may not be on the path.
    for parent in Path(__file__).resolve().parents:
        if (parent / "airflow_provider_rfr" / "__init__.py").is_file() and str(parent) not in sys.path:
            sys.path.append(str(parent))
            break


def main() -> int:
    """Read the command line and the document, and deploy."""
    parser = argparse.ArgumentParser(description="Deploy built-in objects; the next run continues a deploy that died.")
    parser.add_argument("--config", required=True, metavar="FILE", help="YAML or JSON document of the migration")
    arguments = parser.parse_args()
    from airflow_provider_rfr.builtins.deploy import failed, read_document
    from airflow_provider_rfr.builtins.deploy import main as deploy
    from airflow_provider_rfr.exceptions import RfrError
    from airflow_provider_rfr.refresh.process import watch_supervisor

    try:
        document = read_document(Path(arguments.config))
    except RfrError as error:
        return failed(error)
    if (supervisor := document.run.get("supervisor")) is not None:
        # No clean-up is needed: a deploy may be killed at any point, and the next one continues.
        watch_supervisor(*supervisor, stop=lambda reason: os._exit(1))
    return deploy(document, began=BEGAN)


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # All is committed and reported. An ordinary exit would wait for threads that may hang in the network.
    os._exit(code)
