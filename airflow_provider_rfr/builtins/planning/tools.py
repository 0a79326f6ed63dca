"""The planner's tools as this package has them."""

from __future__ import annotations

from functools import cache

from airflow_provider_rfr.builtins import fingerprint
from airflow_provider_rfr.builtins.names import namespace_of
from airflow_provider_rfr.builtins.spec import BuiltinObject
from airflow_provider_rfr.builtins.sql import queries, stars
from airflow_provider_rfr.builtins.wanted import ColumnsOf, Tools


def _expand(obj: BuiltinObject, columns_of: ColumnsOf) -> str:
    return stars.expand_stars(obj.query or "", columns_of, namespace=namespace_of(obj.name))


def _outputs(obj: BuiltinObject, columns_of: ColumnsOf) -> tuple[str, ...]:
    return stars.output_columns(obj.query or "", columns_of, namespace=namespace_of(obj.name))


@cache
def default_tools() -> Tools:
    """Fingerprints and SQL by sqlglot."""
    return Tools(
        canonicalizer=queries.CANONICALIZER,
        fingerprints=fingerprint.fingerprints,
        reads=lambda obj, known: queries.object_reads(obj, known=known),
        expand=_expand,
        outputs=_outputs,
        same_logic=fingerprint.same_logic,
    )
