"""What has to be true before a publish: rows that fit, and as many of them as was allowed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from airflow_provider_rfr.exceptions import PublishRefusedError, TypeMismatchError
from airflow_provider_rfr.refresh.config import PublishMode, RefreshOptions


def check_guards(options: RefreshOptions, *, rows: int, previous: int | None) -> None:
    """Raise :class:`PublishRefusedError` where a guard forbids to publish ``rows`` after ``previous``."""
    if rows == 0:
        if options.allow_empty:
            return
        raise PublishRefusedError(
            "the source gave no rows, so nothing was published and readers keep the old table;"
            " set allow_empty to true if that is right"
        )
    if options.max_shrink is None or not previous or options.mode is PublishMode.APPEND:
        return
    shrunk = 1 - rows / previous
    if shrunk > options.max_shrink:
        raise PublishRefusedError(
            f"{rows} rows after {previous}: {shrunk:.0%} fewer, and max_shrink allows {options.max_shrink:.0%};"
            " nothing was published and readers keep the old table; if the source is right, set max_shrink to a greater"
            " share, or to null to allow any, and run again: nothing is fetched again"
        )


def type_mismatch(offenders: Sequence[Mapping[str, object]], count: int) -> TypeMismatchError:
    """The error that lists the first offenders."""
    lines = [
        f"partition {item['partition']}, page {item['page']}, record {item['record']}: {item['column']} is"
        f" {item['value']}, expected {item['expected']}"
        for item in offenders
    ]
    more = f" (and {count - len(lines)} more)" if count > len(lines) else ""
    return TypeMismatchError(
        f"{count} values do not fit their columns: " + "; ".join(lines) + more + ". Correct the schema and run again,"
        " nothing is fetched again; or set on_type_error to null. A fix by a transformation fetches all pages again",
        offenders,
    )
