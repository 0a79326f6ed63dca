"""The configuration document on its way to the driver: a file that only its owner can read, gone afterwards."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from airflow_provider_rfr.refresh.watchdog import process_started

PREFIX = "rfr-refresh-"
PACKAGE = Path(__file__).resolve().parents[1]


@contextmanager
def shipped_config(document: Mapping[str, Any]) -> Iterator[Path]:
    """The document as a file of mode 0600 in a folder of mode 0700; both are removed when the submit is over."""
    sweep()
    folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-{process_started(os.getpid()) or 0}-"))
    try:
        path = folder / "refresh.json"
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
            json.dump(document, stream)
        yield path
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def sweep() -> None:
    """Remove what killed tasks of this user could not remove."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        pid, _, rest = folder.name.removeprefix(PREFIX).partition("-")
        started = rest.partition("-")[0]
        gone = pid.isdigit() and started.isdigit() and (process_started(int(pid)) or 0) != int(started)
        if gone and folder.stat().st_uid == os.getuid():
            shutil.rmtree(folder, ignore_errors=True)


def application_path() -> str:
    """The Spark application, in the installed package or in a clone."""
    for candidate in (PACKAGE / "spark_apps", PACKAGE.parent / "spark_apps"):
        if (candidate / "full_refresh.py").is_file():
            return str(candidate / "full_refresh.py")
    raise FileNotFoundError("spark_apps/full_refresh.py is missing from this installation")


def package_zip(folder: Path) -> str:
    """The domain packages as a zip for ``--py-files``: executors need no Airflow."""
    target = folder / "airflow_provider_rfr.zip"
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(PACKAGE.rglob("*.py")):
            place = file.relative_to(PACKAGE)
            if place.parts[0] in ("streams", "lake", "refresh", "exceptions.py", "__init__.py", "preflight.py"):
                archive.write(file, Path("airflow_provider_rfr") / place)
    return str(target)
