"""The custom code of custom.yaml: one small class for each kind of component."""
# mypy: allow-subclassing-any

import json
from collections.abc import Iterable, Mapping, MutableMapping
from dataclasses import InitVar, dataclass
from typing import Any

import requests
from airbyte_cdk.sources.declarative.auth.declarative_authenticator import DeclarativeAuthenticator
from airbyte_cdk.sources.declarative.decoders.decoder import Decoder
from airbyte_cdk.sources.declarative.extractors.record_extractor import RecordExtractor
from airbyte_cdk.sources.declarative.extractors.record_filter import RecordFilter
from airbyte_cdk.sources.declarative.extractors.type_transformer import TypeTransformer
from airbyte_cdk.sources.declarative.interpolation import InterpolatedString
from airbyte_cdk.sources.declarative.migrations.state_migration import StateMigration
from airbyte_cdk.sources.declarative.partition_routers.single_partition_router import SinglePartitionRouter
from airbyte_cdk.sources.declarative.requesters.error_handlers import BackoffStrategy, DefaultErrorHandler
from airbyte_cdk.sources.declarative.requesters.http_requester import HttpRequester
from airbyte_cdk.sources.declarative.requesters.paginators.strategies.pagination_strategy import PaginationStrategy
from airbyte_cdk.sources.declarative.retrievers import SimpleRetriever
from airbyte_cdk.sources.declarative.schema import SchemaLoader
from airbyte_cdk.sources.declarative.transformations import RecordTransformation
from airbyte_cdk.sources.streams.http.error_handlers import ResponseAction
from airbyte_cdk.sources.streams.http.error_handlers.response_models import ErrorResolution
from airbyte_cdk.sources.types import StreamSlice


@dataclass
class Counting(PaginationStrategy):
    """Keeps state: a page's token does not say how many pages there were."""

    most: int
    pages: int = 0

    @property
    def initial_token(self) -> Any:
        self.pages = 1
        return None

    def next_page_token(self, response: requests.Response, *arguments: Any, **options: Any) -> Any:
        self.pages += 1
        return response.json()["next"] if self.pages <= self.most else None

    def get_page_size(self) -> None:
        return None


@dataclass
class Signed(DeclarativeAuthenticator):
    key: str
    config: Mapping[str, Any]
    auth_header = "X-Signed"

    @property
    def token(self) -> str:
        return InterpolatedString.create(self.key, parameters={}).eval(self.config)[::-1]


@dataclass
class Patient(DefaultErrorHandler):
    def interpret_response(self, response_or_exception: Any) -> Any:
        if isinstance(response_or_exception, requests.Response) and response_or_exception.status_code == 404:
            return ErrorResolution(ResponseAction.IGNORE, None, "no more")
        return super().interpret_response(response_or_exception)


@dataclass
class Short(BackoffStrategy):
    def backoff_time(self, response_or_exception: Any, attempt_count: int) -> float:
        return 0.01


@dataclass
class Pairs(RecordExtractor):
    def extract_records(self, response: requests.Response) -> Iterable[MutableMapping[str, Any]]:
        for record in response.json()["data"]:
            yield from ({**record, "half": half} for half in (1, 2))


@dataclass
class Odd(RecordFilter):
    def filter_records(self, records: Any, *arguments: Any, **options: Any) -> Any:
        return (record for record in records if record["id"] % 2)


@dataclass
class Texts(TypeTransformer):
    def transform(self, record: dict[str, Any], schema: Mapping[str, Any]) -> None:
        record.update({name: str(record[name]) for name in schema["properties"] if name in record})


@dataclass
class Fixed(SchemaLoader):
    def get_json_schema(self) -> Mapping[str, Any]:
        return {"type": "object", "properties": {"id": {"type": "string"}}}


@dataclass
class Louder(RecordTransformation):
    def transform(self, record: dict[str, Any], *arguments: Any, **options: Any) -> None:
        record["name"] = f"{record['name']}!"


@dataclass
class Halves(SinglePartitionRouter):
    def stream_slices(self) -> Iterable[StreamSlice]:
        for part in ("one", "two"):
            yield StreamSlice(partition={"part": part}, cursor_slice={}, extra_fields={"seen": (part, 1)})


@dataclass
class Backwards(Decoder):
    parameters: InitVar[Mapping[str, Any]] = None

    def is_stream_response(self) -> bool:
        return False

    def decode(self, response: requests.Response) -> Any:
        yield json.loads(response.text[::-1])


class Marked(HttpRequester):
    def get_request_params(self, **options: Any) -> MutableMapping[str, Any]:
        return {**super().get_request_params(**options), "mark": "custom"}


class Twice(SimpleRetriever):
    def read_records(self, *arguments: Any, **options: Any) -> Any:
        for record in super().read_records(*arguments, **options):
            yield record
            yield record


class Migrated(StateMigration):
    def should_migrate(self, stream_state: Mapping[str, Any]) -> bool:
        return "old" in stream_state

    def migrate(self, stream_state: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"at": stream_state["old"]}
