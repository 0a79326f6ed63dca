"""Catalogs, tables, schemas and files: everything that touches PyIceberg's API, and nothing else does."""

from __future__ import annotations

from airflow_provider_rfr.lake.catalog import LakeSettings, open_catalog

__all__ = ["LakeSettings", "open_catalog"]
