"""The lakes of a campaign: a catalog and a warehouse, each new one empty."""

from __future__ import annotations

import shutil
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from airflow_provider_rfr.lake.catalog import LakeSettings
from tests.integration.rest_catalog import rest_catalog

CATALOGS: Final = ("sqlite", "rest")
STORES: Final = ("file", "s3")


class Lakes:
    """A context manager that makes lakes, one at a time.

    :param catalog: of :data:`CATALOGS`
    :param store: of :data:`STORES`; ``s3`` only with ``sqlite``, as the REST server has no S3 client
    """

    def __init__(self, folder: Path, catalog: str = "sqlite", store: str = "file") -> None:
        self._folder, self._catalog, self._store = folder, catalog, store
        self._servers, self._number = ExitStack(), 0
        self._newest: Path | None = None
        self._endpoint = ""

    def __enter__(self) -> Lakes:
        return self

    def __exit__(self, *_: object) -> None:
        self._servers.close()

    def new(self, *, keep: bool) -> LakeSettings:
        """Make an empty lake.

        :param keep: keep the files of the one before
        """
        if self._newest is not None and not keep:
            shutil.rmtree(self._newest)
        self._number += 1
        self._newest = self._folder / f"lake-{self._number}"
        self._newest.mkdir(parents=True)
        if self._catalog == "rest":
            self._servers.close()
            server = self._servers.enter_context(rest_catalog(self._newest))
            return LakeSettings("rfr", server.properties)
        properties = {"type": "sql", "uri": f"sqlite:///{self._newest}/catalog.db"}
        if self._store == "file":
            return LakeSettings("rfr", {**properties, "warehouse": f"file://{self._newest}/warehouse"})
        return LakeSettings("rfr", {**properties, **self._new_bucket()})

    def _new_bucket(self) -> dict[str, str]:
        import boto3

        self._endpoint = self._endpoint or self._start_store()
        bucket, keys = f"lake-{self._number}", ("key", "secret")
        names = {"region_name": "us-east-1", "aws_access_key_id": keys[0], "aws_secret_access_key": keys[1]}
        boto3.client("s3", endpoint_url=self._endpoint, **names).create_bucket(Bucket=bucket)
        access = {"s3.access-key-id": keys[0], "s3.secret-access-key": keys[1]}
        address = {"s3.endpoint": self._endpoint, "s3.region": "us-east-1"}
        return {"warehouse": f"s3://{bucket}/warehouse", **address, **access}

    def _start_store(self) -> str:
        from tests.integration.object_store import moto_server

        host, port = self._servers.enter_context(moto_server())
        return f"http://{host}:{port}"
