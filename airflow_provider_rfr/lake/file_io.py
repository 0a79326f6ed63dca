"""PyIceberg's FileIO on PyArrow, extended so that it reaches every object store without further packages.

A full Azure address names the account, which PyIceberg 0.12 reads only with its other FileIO, on adlfs. Google's client
retries each request to a silent or missing server for fifteen minutes. The module also corrects how PyIceberg reads and
writes nulls (:mod:`.projection`), because every table of :func:`.open_catalog` needs it.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final

import pyarrow.fs as pafs
from pyiceberg.io.pyarrow import PyArrowFileIO

from airflow_provider_rfr.lake import projection  # noqa: F401

_AZURE: Final = frozenset({"abfs", "abfss", "wasb", "wasbs"})
_GOOGLE: Final = frozenset({"gs", "gcs"})
_GOOGLE_LIMIT: Final = timedelta(seconds=60)
"""Time after which Google's client begins no further retry of a request."""


class LakeFileIO(PyArrowFileIO):
    """A FileIO that also takes ``abfss://container@account.dfs.core.windows.net/path``, and limits Google's client."""

    @staticmethod
    def parse_location(location: str, properties: Any = None) -> tuple[str, str, str]:
        """Return scheme, network location, and the path that PyArrow's filesystem takes."""
        scheme, place, path = PyArrowFileIO.parse_location(location, properties or {})
        container, at, _ = place.partition("@")
        return scheme, place, container + path.removeprefix(place) if scheme in _AZURE and at else path

    def _initialize_fs(self, scheme: str, netloc: str | None = None) -> pafs.FileSystem:
        host = (netloc or "").partition("@")[2]
        if scheme in _GOOGLE:
            remake, (options,) = super()._initialize_fs(scheme, netloc).__reduce__()
            return remake({**options, "retry_time_limit": _GOOGLE_LIMIT})
        if scheme not in _AZURE or not host:
            return super()._initialize_fs(scheme, netloc)
        return PyArrowFileIO(_of_account(host, self.properties))._initialize_azure_fs()


def _of_account(host: str, properties: Mapping[str, str]) -> dict[str, str]:
    """Return the properties, completed by those that the account's host, e.g. ``a.dfs.core.windows.net``, implies."""
    account, _, service = host.partition(".")
    domain = service.partition(".")[2]
    stated = {"adls.account-name": account}
    if domain:
        stated |= {"adls.blob-storage-authority": f".blob.{domain}", "adls.dfs-storage-authority": f".dfs.{domain}"}
    # Catalogs vend one token for each account.
    if vended := properties.get(f"adls.sas-token.{host}"):
        stated["adls.sas-token"] = vended
    return {**stated, **properties}
