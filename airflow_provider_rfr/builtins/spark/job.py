"""One piece of work, and the way of a query's rows into data files."""

from __future__ import annotations

import hashlib
import pickle
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from airflow_provider_rfr.builtins.names import namespace_of
from airflow_provider_rfr.builtins.spark.errors import told
from airflow_provider_rfr.builtins.spark.tasks import RESULT, Unit, WriteRows
from airflow_provider_rfr.builtins.sql.names import NamedTable, replace_tables
from airflow_provider_rfr.exceptions import QueryError, SchemaError
from airflow_provider_rfr.lake.work_files import WorkFolder

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyspark.sql import DataFrame, SparkSession

    from airflow_provider_rfr.lake.data_files import FileLayout, StoredFile
    from airflow_provider_rfr.lake.file_target import FileTarget


@dataclass(frozen=True)
class Job:
    """What is to be computed.

    :ivar lake: name of the catalog
    :ivar table: whose rows they become
    :ivar secrets: that no error may show
    """

    session: SparkSession
    lake: str
    catalog: Catalog
    query: str
    table: str
    target: FileTarget
    secrets: tuple[str, ...] = ()

    @property
    def namespace(self) -> str:
        """Of names that have none."""
        return namespace_of(self.table)

    @cached_property
    def _written(self) -> dict[str, str]:
        found: dict[str, str] = {self.table.casefold(): self.table}

        def note(each: NamedTable) -> None:
            name = each.written.replace("`", "")
            found.setdefault(each.name, name if len(each.parts) > 1 else f"{self.namespace}.{name}")

        with suppress(QueryError):
            replace_tables(self.query, self.namespace, note)
        return found

    def real_name(self, name: str) -> str:
        """A table's name as the query writes it, for catalogs tell upper and lower case apart."""
        return self._written.get(name.casefold(), name)

    def work(self, *inputs: str) -> WorkFolder:
        """Where its files go. Its key is of all that decides what is in them.

        :param inputs: what the rows come from, as far as the query does not say it
        """
        layout = self.target.layout
        digest = hashlib.blake2b(digest_size=16)
        for part in (self.query, layout.schema.model_dump_json(), layout.spec.model_dump_json(), *inputs):
            digest.update(part.encode())
            digest.update(b"\0")
        return WorkFolder(self.target, digest.hexdigest())

    def run(self, rows: DataFrame, work: WorkFolder, units: tuple[Unit, ...] = ()) -> tuple[StoredFile, ...]:
        """Write the rows; returns the files.

        :param units: of each of the partitions of ``rows``; each is noted when it is finished
        :raises SchemaError: a value does not fit its column
        :raises SparkJobError: Spark could not finish
        """
        with told(self.table, self.secrets):
            results = rows.mapInArrow(WriteRows(work, units), RESULT).collect()
        errors = [each["error"] for each in results if each["error"] is not None]
        if errors:
            raise SchemaError(f"{self.table}: {errors[0]}")
        return tuple(pickle.loads(each["file"]) for each in results)


def matched(rows: DataFrame, layout: FileLayout, table: str, *, complete: bool) -> DataFrame:
    """The query's result with its columns called as the table's are.

    :param complete: every column of the table has to be there; else those that may be NULL can be left out
    :raises SchemaError: the result's columns are not the table's
    """
    wanted = {field.name.casefold(): field for field in layout.arrow}
    found = [name.casefold() for name in rows.columns]
    problems = [f"gives {name}, which is no column of it" for name in rows.columns if name.casefold() not in wanted]
    problems += [f"gives {name} twice" for name in sorted({name for name in found if found.count(name) > 1})]
    missing = [field for name, field in wanted.items() if name not in found and (complete or not field.nullable)]
    problems += [f"does not give {field.name}" for field in missing]
    if problems:
        raise SchemaError(
            f"the query for {table} {', '.join(problems)}; its columns are {', '.join(layout.arrow.names)}"
        )
    return rows.toDF(*(wanted[name].name for name in found))
