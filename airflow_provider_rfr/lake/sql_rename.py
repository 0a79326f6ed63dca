"""Renaming a table of a SQL catalog only if it is still the one that was looked at.

Iceberg's own renames go by name alone: a process that was paused before one would rename whatever has the name when it
wakes. A SQL catalog keeps a table's name and the place of its metadata in one row, so both can be asked for at once.
"""

from __future__ import annotations

from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import IcebergTables, SqlCatalog
from sqlalchemy import update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from airflow_provider_rfr.lake.commits import CommitConflictError


def rename_exactly(catalog: SqlCatalog, old: str, new: str, metadata_location: str) -> None:
    """Rename the table whose metadata is there.

    :raises CommitConflictError: it has other metadata by now, is gone, or the new name is taken; nothing was done
    """
    row = (
        (IcebergTables.catalog_name == catalog.name)
        & (IcebergTables.table_namespace == _namespace(old))
        & (IcebergTables.table_name == Catalog.table_name_from(old))
        & (IcebergTables.metadata_location == metadata_location)
    )
    values = {"table_namespace": _namespace(new), "table_name": Catalog.table_name_from(new)}
    with Session(catalog.engine) as session:
        try:
            renamed = session.execute(update(IcebergTables).where(row).values(**values)).rowcount  # type: ignore[attr-defined]
            session.commit()
        except IntegrityError as error:
            raise CommitConflictError(f"{new} is taken") from error
    if renamed != 1:
        raise CommitConflictError(f"{old} is no longer the table that was looked at")


def _namespace(name: str) -> str:
    return Catalog.namespace_to_string(Catalog.namespace_from(name))
