"""The files that an attempt ships: its configuration, which holds secrets, and the package for executors.

They lie in a folder of mode 0700 that is removed when the attempt ends. An attempt that was killed can't do that, so
the next one on the machine does: a folder's name says whose it is (host, process, start of the process).
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import stat
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import airflow_provider_rfr
from airflow_provider_rfr.exceptions import PreflightError
from airflow_provider_rfr.refresh.watchdog import is_alive, process_started

_PACKAGE = Path(airflow_provider_rfr.__file__).parent
_DOMAIN = ("exceptions", "__init__.py", "documents.py", "secret_names.py", "streams", "lake", "refresh")
MIGRATION_PARTS = ("store", "builtins")
"""What a migration's executors need besides."""


@contextmanager
def private_folder() -> Iterator[Path]:
    """A folder that only this user can read, removed in any case."""
    base = _base_folder()
    sweep(base)
    own = f"{socket.gethostname()}~{os.getpid()}~{process_started(os.getpid()) or 0}~"
    folder = Path(tempfile.mkdtemp(prefix=own, dir=base))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def write_config(folder: Path, document: Mapping[str, Any]) -> Path:
    """Write the document, readable for its owner alone from its first byte on.

    The name differs from attempt to attempt: with ``--files`` it becomes a name in the driver's working folder.
    """
    path = folder / f"rfr-{folder.name[-8:]}.json"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        json.dump(document, file, default=str)
    return path


def zip_package(folder: Path, more: tuple[str, ...] = ()) -> Path:
    """The parts of this package that executors need, for ``--py-files``; none of them knows Airflow."""
    target = folder / "airflow_provider_rfr.zip"
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in (*_DOMAIN, *more):
            part = _PACKAGE / name
            for file in [part] if part.is_file() else sorted(part.rglob("*.py")):
                archive.write(file, Path(_PACKAGE.name) / file.relative_to(_PACKAGE))
    return target


def sweep(base: Path) -> list[str]:
    """Remove the folders of this host's dead attempts; returns their names."""
    removed = []
    for folder in base.iterdir():
        host, _, rest = folder.name.rpartition("~")[0].partition("~")
        pid, _, started = rest.partition("~")
        if host != socket.gethostname() or not (pid.isdigit() and started.isdigit()):
            continue
        if not is_alive(int(pid), int(started)):
            shutil.rmtree(folder, ignore_errors=True)
            removed.append(folder.name)
    return removed


def application_path(name: str = "full_refresh") -> Path:
    """A Spark application: beside the package in a clone, inside it where it was installed."""
    for parent in (_PACKAGE, _PACKAGE.parent):
        path = parent / "spark_apps" / f"{name}.py"
        if path.is_file():
            return path
    raise PreflightError(f"spark_apps/{name}.py is missing beside {_PACKAGE}; install the package again")


def package_root() -> Path | None:
    """The folder that makes the package importable where it is not installed; None where it is."""
    root = _PACKAGE.parent
    return None if root.name in ("site-packages", "dist-packages") else root


def _base_folder() -> Path:
    """One folder per user; a name that somebody else could have taken is not trusted."""
    base = Path(tempfile.gettempdir()) / f"airflow-provider-rfr-{os.getuid()}"
    base.mkdir(mode=0o700, exist_ok=True)
    found = base.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise PreflightError(f"{base} belongs to somebody else; remove it, or set TMPDIR to a folder of your own")
    if stat.S_IMODE(found.st_mode) != 0o700:
        base.chmod(0o700)
    return base
