"""Events that templates are tried with: of no, one and two collections, and of names that would break JSON."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone

from airflow_provider_rfr import __version__
from airflow_provider_rfr.lake.commit_event import Binding, CommitEvent

HOSTILE = "\"\\ \n\t\u2028</script>{{x}}'😀"
HEADER_VALUE = "placeholder"
_BEGAN = datetime(2024, 1, 1, tzinfo=timezone.utc)
_NAMES = ("acmeCo/example/collection", "acmeCo/example/another")


@dataclass(frozen=True, slots=True)
class Trial:
    """One event to try.

    :ivar words: which one it is, for people
    :ivar header: value of exposed headers
    :ivar hostile: whether values hold what breaks JSON
    """

    words: str
    event: CommitEvent
    header: str = HEADER_VALUE
    hostile: bool = False


def trials() -> tuple[Trial, ...]:
    """In the order of how likely a mistake shows."""
    return (
        Trial("with 1 collection", _event(1)),
        Trial("with no collections", _event(0)),
        Trial("with 2 collections", _event(2)),
        Trial("with quotes and a line break in a value", _hostile(_event(2)), f'{HEADER_VALUE}"\\', hostile=True),
        Trial("outside Airflow", replace(_event(1), dag_id="", dag_run_id="", task_id="", map_index=None)),
    )


def placeholder_events() -> tuple[CommitEvent, ...]:
    """The events alone."""
    return tuple(trial.event for trial in trials())


def _event(collections: int) -> CommitEvent:
    names = _NAMES[:collections]
    return CommitEvent(
        commit_id="00000000-0000-0000-0000-000000000000",
        target="example.table",
        lake="rfr",
        materialization_name="acmeCo/example/materialization",
        flow_run_id="00000000-0000-0000-0000-000000000000",
        sequence=1,
        snapshot_id=1,
        committed_at=_BEGAN + timedelta(minutes=2),
        generation=1,
        collection_names=names,
        connector_image=f"airflow-provider-rfr:{__version__}",
        flow_published_at_min=_BEGAN if collections else None,
        flow_published_at_max=_BEGAN + timedelta(minutes=1) if collections else None,
        bindings=tuple(Binding("example.table", name, 10, 1000) for name in names),
        dag_id="example",
        dag_run_id="manual__2024-01-01T00:00:00+00:00",
        task_id="refresh",
        map_index=-1,
        logical_date="2024-01-01T00:00:00Z",
    )


def _hostile(event: CommitEvent) -> CommitEvent:
    return replace(
        event,
        materialization_name=HOSTILE,
        target=HOSTILE,
        connector_image=HOSTILE,
        collection_names=tuple(HOSTILE + name for name in event.collection_names),
        bindings=tuple(replace(each, table=HOSTILE, collection=HOSTILE) for each in event.bindings),
        dag_id=HOSTILE,
        dag_run_id=HOSTILE,
        task_id=HOSTILE,
    )
