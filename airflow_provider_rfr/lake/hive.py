"""A Hive catalog whose client has timeouts, has a connection for each thread, and supports Hive 4.

PyIceberg 0.12's own client has one connection for all threads, waits for ever, and calls two methods that Hive 4.0.1
no longer has. The module imports Thrift, which only ``pyiceberg[hive]`` installs.
"""

from __future__ import annotations

import threading
from typing import Any
from urllib.parse import urlsplit

from hive_metastore.ThriftHiveMetastore import Client  # type: ignore[import-untyped]
from hive_metastore.ttypes import GetTableRequest, GetTablesRequest  # type: ignore[import-untyped]
from pyiceberg.catalog.hive import HiveCatalog, _HiveClient
from thrift.protocol.TBinaryProtocol import TBinaryProtocol  # type: ignore[import-untyped]
from thrift.transport.TSocket import TSocket  # type: ignore[import-untyped]
from thrift.transport.TTransport import TBufferedTransport, TSaslClientTransport  # type: ignore[import-untyped]


class _RequestClient(Client):  # type: ignore[misc]
    """A client that loads tables by methods that Hive has since 2.3, and still has in 4.0.1."""

    def get_table(self, dbname: str, tbl_name: str) -> Any:
        return self.get_table_req(GetTableRequest(dbName=dbname, tblName=tbl_name)).table

    def get_table_objects_by_name(self, dbname: str, tbl_names: list[str]) -> Any:
        return self.get_table_objects_by_name_req(GetTablesRequest(dbName=dbname, tblNames=tbl_names)).tables


class _ThreadClient(threading.local, _HiveClient):
    """A client with timeouts, and with a connection for each thread, because threads share a catalog.

    :ivar limits: seconds to wait for a connection, and for an answer
    """

    limits: tuple[float, float]
    _socket: TSocket

    def __init__(self, limits: tuple[float, float], *arguments: Any) -> None:
        self.limits = limits
        super().__init__(*arguments)

    def __enter__(self) -> Any:
        client = super().__enter__()
        self._socket.setTimeout(1000 * self.limits[1])
        return client

    def _init_thrift_transport(self) -> Any:
        address = urlsplit(self._uri)
        self._socket = TSocket(address.hostname, address.port)
        self._socket.setTimeout(1000 * self.limits[0])
        if self._kerberos_auth:
            return TSaslClientTransport(self._socket, host=address.hostname, service=self._kerberos_service_name)
        return TBufferedTransport(self._socket)

    def _client(self) -> Any:
        client = _RequestClient(TBinaryProtocol(self._transport))
        if self._ugi:
            client.set_ugi(*self._ugi)
        return client


class LimitedHiveCatalog(HiveCatalog):
    """A Hive catalog whose client has timeouts.

    :param limits: seconds to wait for a connection, and for an answer
    """

    def __init__(self, name: str, limits: tuple[float, float], **properties: str) -> None:
        super().__init__(name, **properties)
        own = self._client
        # PyIceberg's own client has chosen the first address that it can parse; this one uses the same.
        arguments = own._uri, ":".join(own._ugi or ()), own._kerberos_auth, own._kerberos_service_name
        self._client = _ThreadClient(limits, *arguments)
