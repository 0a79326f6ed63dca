"""Declarative REST streams: a YAML document becomes streams that read an API page by page."""

from __future__ import annotations

from airflow_provider_rfr.streams.rest.stream import RestStream

__all__ = ["RestStream"]
