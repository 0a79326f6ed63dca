"""The registry's rows and the values that plans compare."""

from __future__ import annotations

import json

from sqlalchemy import Connection

from airflow_provider_rfr.builtins.codec import decode, dumps
from airflow_provider_rfr.builtins.sinks import sink_states
from airflow_provider_rfr.builtins.state import Recorded, RecordedObject
from airflow_provider_rfr.store.registry import Entry, RegistryState, read_registry


def read_recorded(connection: Connection, project: str) -> Recorded:
    """What is recorded, sinks and all, as of one moment."""
    return recorded_of(read_registry(connection, project), connection)


def recorded_of(state: RegistryState, connection: Connection) -> Recorded:
    """The same of a registry that was read."""
    objects = tuple(decode(RecordedObject, json.loads(each.body)) for each in state.entries)
    return Recorded(state.revision, state.version, objects, sink_states(connection))


def entry_of(obj: RecordedObject) -> Entry:
    """The row of an object."""
    return Entry(str(obj.uuid), obj.name, obj.kind.value, obj.physical, dumps(obj).decode())
