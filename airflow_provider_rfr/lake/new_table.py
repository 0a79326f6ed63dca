"""A table that comes with its rows: until the one commit that makes it, nobody sees anything of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pyiceberg.exceptions import CommitFailedException, TableAlreadyExistsError
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC

from airflow_provider_rfr.lake.commits import CommitConflictError
from airflow_provider_rfr.lake.data_files import FileLayout, StoredFile
from airflow_provider_rfr.lake.expiry import TABLE_PROPERTIES
from airflow_provider_rfr.lake.file_target import FileTarget
from airflow_provider_rfr.lake.files import FileStore
from airflow_provider_rfr.lake.partition_texts import partition_spec
from airflow_provider_rfr.lake.table_changes import ColumnLike, key_properties, new_schema

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog


class NewTable:
    """A table that is not there yet. Its namespace is made at once."""

    def __init__(
        self,
        catalog: Catalog,
        name: str,
        columns: Sequence[ColumnLike],
        *,
        partitioning: Sequence[str] = (),
        keys: Sequence[str] = (),
        properties: Mapping[str, str],
    ) -> None:
        catalog.create_namespace_if_not_exists(name.rpartition(".")[0])
        schema = new_schema(columns, keys)
        self._name = name
        self._transaction = catalog.create_table_transaction(
            name,
            schema,
            partition_spec=partition_spec(partitioning, schema) or UNPARTITIONED_PARTITION_SPEC,
            properties={**TABLE_PROPERTIES, **properties, **key_properties(keys)},
        )

    def target(self, family: str) -> FileTarget:
        """How its data files look.

        :param family: what the files' names begin with
        """
        metadata, table = self._transaction.table_metadata, self._transaction._table
        layout = FileLayout(metadata.schema(), metadata.spec(), dict(metadata.properties))
        folder = metadata.properties.get("write.data.path", f"{metadata.location.rstrip('/')}/data")
        return FileTarget(layout, FileStore(dict(table.io.properties)), folder.rstrip("/"), layout.arrow, family=family)

    def commit(self, files: Sequence[StoredFile], summary: Mapping[str, str]) -> None:
        """Make it, with these rows.

        :param summary: goes into the snapshot's
        :raises CommitConflictError: something has its name by now; nothing was written
        """
        layout = self.target("").layout
        if files:
            with self._transaction.update_snapshot(snapshot_properties=dict(summary)).fast_append() as append:
                for file in files:
                    append.append_data_file(file.describe(layout))
        try:
            self._transaction.commit_transaction()
        except (CommitFailedException, TableAlreadyExistsError) as error:
            raise CommitConflictError(str(error)) from error
