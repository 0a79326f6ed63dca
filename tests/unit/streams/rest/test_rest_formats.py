"""JSON Lines and CSV as formats of an answer."""

from __future__ import annotations

import gzip
import json

import pytest
from rest_api import QUICK, Reply, ids

from airflow_provider_rfr.exceptions import SourceDefinitionError, SourceError
from airflow_provider_rfr.streams.core import Complete, NextPage
from airflow_provider_rfr.streams.rest import RestStream
from airflow_provider_rfr.streams.rest.definition import whole_definition
from tests.soon import assert_grows_in_proportion
from tests.unit.messages import raises

JSONL, CSV = {"format": "jsonl"}, {"format": "csv"}
ONCE = {**QUICK, "max_retries": 0}


def text(body, media_type="text/plain", **headers):
    return Reply(body if isinstance(body, bytes) else body.encode(), headers={"Content-Type": media_type, **headers})


def records_of(api, make, reply, records, **fields):
    api.answers(reply if isinstance(reply, Reply) else text(reply))
    return make(records=records, **{"error_handler": ONCE, **fields}).read_page({}, None).records


class TestJsonLines:
    @pytest.mark.parametrize(
        ("body", "found"),
        [
            ('{"id": 1}\n{"id": 2}\n', [1, 2]),
            ('{"id": 1}\r\n\r\n  \n{"id": 2}', [1, 2]),
            ('\ufeff{"id": "a\u2028b"}\n', ["a\u2028b"]),
            ("", []),
            ("\n", []),
            ('{"id": 123456789012345678901234}\n', ["123456789012345678901234"]),
        ],
    )
    def test_each_line_is_a_record(self, api, make, body, found):
        assert ids(records_of(api, make, body, JSONL)) == found

    def test_a_path_leads_inside_of_each_line(self, api, make):
        body = '{"data": {"id": 1}}\n{"data": [{"id": 2}, {"id": 3}]}\n'
        assert ids(records_of(api, make, body, {**JSONL, "path": "data"})) == [1, 2, 3]

    def test_a_line_without_the_path_is_an_error_that_names_it_or_no_record(self, api, make):
        body = '{"data": {"id": 1}}\n{"meta": {"count": 1}}\n'
        with pytest.raises(SourceError, match=r"path 'data' leads to nothing: in line 2, it is .* the keys meta"):
            records_of(api, make, body, {**JSONL, "path": "data"})
        assert ids(records_of(api, make, body, {**JSONL, "path": "data", "on_missing": "empty"})) == [1]

    @pytest.mark.parametrize("broken", ['{"id": 2', '{"id": 2}{"id": 3}', "<!-- -->", "{'id': 2}"])
    def test_a_broken_line_is_an_error_with_its_number_after_retries(self, api, make, broken):
        body = f'{{"id": 1}}\n\n{broken}\n'
        with pytest.raises(
            SourceError, match=r"line 3 of JSON Lines is not a whole JSON value .*gave up after 2 requests"
        ):
            records_of(api, make, body, JSONL, error_handler={**QUICK, "max_retries": 1})
        assert len(api.asked) == 2

    def test_a_line_that_is_nearly_json_obeys_on_bad_json(self, api, make):
        body = '{"id": 1}\n{"id": NaN}\n'
        with pytest.raises(SourceError, match=r"line 2 of JSON Lines: .*NaN.*on_bad_json"):
            records_of(api, make, body, JSONL)
        assert len(api.asked) == 1
        handler = {**ONCE, "on_bad_json": "replace"}
        assert ids(records_of(api, make, body, JSONL, error_handler=handler)) == [1, None]

    def test_a_line_that_is_no_object_is_an_error(self, api, make):
        with pytest.raises(SourceError, match="a list of 1 as item 2, where a record is an object"):
            records_of(api, make, '{"id": 1}\n[{"id": 2}]\n', JSONL)

    def test_an_error_in_a_line_without_records_is_not_the_last_page(self, api, make):
        with pytest.raises(SourceError, match="no records and an error, in error: .*backend"):
            records_of(api, make, '{"error": "backend"}\n', {**JSONL, "path": "data", "on_missing": "empty"})

    def test_paginators_see_the_list_of_lines(self, api, make):
        api.answers(text('{"id": 1}\n{"id": 2, "next": "n"}\n'), text('{"id": 3}\n'))
        stream = make(records=JSONL, paginator={"type": "cursor", "cursor": {"expression": "response[-1].get('next')"}})
        assert ids(stream.read_records()) == [1, 2, 3]
        assert api.asked[1].query == {"cursor": "n"}


class TestCsv:
    def test_the_first_row_names_the_columns_and_values_are_texts(self, api, make):
        body = 'id,name,note\r\n007,"Zürich, ""HB""","two\nlines"\r\n\r\n8,,\r\n'
        assert records_of(api, make, text(body, "text/csv; charset=utf-8"), CSV) == [
            {"id": "007", "name": 'Zürich, "HB"', "note": "two\nlines"},
            {"id": "8", "name": "", "note": ""},
        ]

    def test_declared_columns_and_another_delimiter(self, api, make):
        records = {**CSV, "columns": ["id", "name"], "delimiter": "\t"}
        assert records_of(api, make, "1\ta,b\n2\tc", records) == [{"id": "1", "name": "a,b"}, {"id": "2", "name": "c"}]
        assert records_of(api, make, "", records) == []

    def test_a_header_alone_means_no_records_and_nothing_at_all_only_where_that_is_declared(self, api, make):
        assert records_of(api, make, "\ufeffid,name\n", CSV) == []
        with pytest.raises(
            SourceError, match=r"no row with the names of its columns .*on_missing: empty.*write columns"
        ):
            records_of(api, make, "", CSV)
        assert records_of(api, make, "", {**CSV, "on_missing": "empty"}) == []

    def test_the_charset_of_the_answer_is_used(self, api, make):
        body = "id\nZürich\n"
        for charset in ("latin-1", "utf-16"):
            assert ids(records_of(api, make, text(body.encode(charset), f"text/csv; charset={charset}"), CSV)) == [
                "Zürich"
            ]
        with pytest.raises(SourceError, match="charset 'klingon' is unknown"):
            records_of(api, make, text(body, "text/csv; charset=klingon"), CSV)

    @pytest.mark.parametrize(
        ("declared", "written"),
        [("utf_8", "utf-8"), ("latin-1", "utf-8"), ("utf-16-le", "utf-16-le"), ("utf-8", "utf-16-be")],
    )
    def test_a_byte_order_mark_tells_the_charset_whatever_is_declared(self, api, make, declared, written):
        bodies = {"csv": "id\nZürich\n", "jsonl": '{"id": "Zürich"}\n', "json": '[{"id": "Zürich"}]'}
        for kind, body in bodies.items():
            reply = text(f"\ufeff{body}".encode(written), f"text/{kind}; charset={declared}")
            assert records_of(api, make, reply, {"format": kind}) == [{"id": "Zürich"}]

    def test_bytes_that_are_no_text_obey_on_bad_json(self, api, make):
        reply = text(b"id\n1\ncaf\xe9\n", "text/csv")
        with pytest.raises(SourceError, match=r"line 3 of CSV has a byte that is not UTF-8, at 3 of 5 .*on_bad_json"):
            records_of(api, make, reply, CSV)
        handler = {**ONCE, "on_bad_json": "replace"}
        assert ids(records_of(api, make, reply, CSV, error_handler=handler)) == ["1", "caf\ufffd"]

    @pytest.mark.parametrize(
        "body",
        [
            "id,name\n1,a\n2\n",
            "id,name\n1,a,b\n",
            'id,name\n1,"a\n2,b\n',
            'id,name\n1,"a"b\n',
            "id,id\n1,2\n",
            "id,\n1,2\n",
            '{"error": "quota"}',
            "<html>Log in</html>",
            "<?xml version='1.0'?><a/>",
        ],
        ids=repr,
    )
    def test_what_is_no_table_is_an_error_that_says_where(self, api, make, body):
        with raises(SourceError):
            records_of(api, make, body, CSV)

    def test_a_long_value_is_a_value(self, api, make):
        assert len(records_of(api, make, f"id\n{'x' * 500_000}\n", CSV)[0]["id"]) == 500_000

    def test_rows_are_read_in_proportion_to_their_number(self, api, make):
        def read(rows):
            assert len(records_of(api, make, "id,name\n" + "1,a\n" * rows, CSV)) == rows

        assert_grows_in_proportion(read, small=1000, large=100_000)

    def test_filters_and_transformations_see_texts(self, api, make):
        to_number = {"type": "add", "fields": {"id": "{{ record.id | int }}"}}
        records = {**CSV, "filter": "record.id | int > 1"}
        assert records_of(api, make, "id\n1\n2\n", records, transformations=[to_number]) == [{"id": 2}]


BODIES = {
    "csv": lambda numbers: "id\n" + "".join(f"{number}\n" for number in numbers),
    "jsonl": lambda numbers: "".join(f'{{"id": "{number}"}}\n' for number in numbers),
}


@pytest.mark.parametrize("form", BODIES)
class TestBoth:
    def test_a_chain_is_resumed_in_the_middle_by_its_token_in_another_process(self, api, make, form):
        def page(asked):
            number = int(asked.query.get("cursor", 0))
            more = {"X-Next": str(number + 1)} if number < 4 else {}
            return text(BODIES[form]([3 * number, 3 * number + 1, 3 * number + 2]), **more)

        api.answer = page
        stream = make(records={"format": form}, paginator={"type": "cursor", "cursor": {"header": "X-Next"}})
        whole = ids(stream.read_records())
        assert whole == [str(number) for number in range(15)]
        before = [stream.read_page({}, None), stream.read_page({}, "1")]
        token = json.loads(json.dumps(before[-1].next.token))
        build, arguments = stream.__reduce__()
        again = build(*arguments)
        assert isinstance(again, RestStream)
        after = list(again.read_records(stream_state={"next_page_token": token}))
        assert ids([*before[0].records, *before[1].records, *after]) == whole

    def test_numbered_pages_count_rows_before_the_filter(self, api, make, form):
        api.answer = lambda asked: text(BODIES[form]([[1, 2], [3, 4], []][asked.page - 1]))
        stream = make(
            records={"format": form, "filter": "record.id | int > 2"}, paginator={"type": "page_number", "page_size": 2}
        )
        page = stream.read_page({}, None)
        assert (page.received, list(page.records), page.next) == (2, [], NextPage(2))
        assert ids(stream.read_records()) == ["3", "4"]

    def test_a_keyset_continues_after_the_last_record(self, api, make, form):
        api.answer = lambda asked: text(BODIES[form]([8, 9] if "since" not in asked.query else []))
        stream = make(
            records={"format": form}, paginator={"type": "keyset", "field": "id", "send_as": {"query": "since"}}
        )
        assert ids(stream.read_records()) == ["8", "9"]
        assert api.asked[1].query == {"since": "9"}

    def test_a_packed_body_is_unpacked_and_a_bomb_is_stopped(self, api, make, form):
        body = gzip.compress(BODIES[form]([1]).encode())
        assert ids(records_of(api, make, text(body, **{"Content-Encoding": "gzip"}), {"format": form})) == ["1"]
        assert ids(records_of(api, make, text(body, "application/gzip"), {"format": form})) == ["1"]
        parts = body + gzip.compress(BODIES[form]([2]).removeprefix("id\n").encode())
        assert ids(records_of(api, make, text(parts, "application/gzip"), {"format": form})) == ["1", "2"]
        bomb = gzip.compress(b"\n" * 50_000_000)
        with pytest.raises(SourceError, match="larger than 1000000 bytes"):
            records_of(
                api, make, text(bomb, **{"Content-Encoding": "gzip"}), {"format": form}, max_response_bytes=1_000_000
            )

    @pytest.mark.parametrize("handler", [{}, {"on_bad_json": "replace"}, {"on_bad_json": "skip"}])
    def test_a_zip_file_fails_at_once_and_is_named(self, api, make, form, handler):
        reply = text(b"PK\x03\x04\x14\x00\xff\xfe\n", "application/zip")
        with pytest.raises(SourceError, match=r"the answer is a ZIP file, not .*application/zip.*a Python class"):
            records_of(api, make, reply, {"format": form}, error_handler={**QUICK, **handler})
        assert len(api.asked) == 1

    def test_no_content_is_no_records(self, api, make, form):
        assert records_of(api, make, Reply(None, 204), {"format": form}) == []

    def test_the_format_is_asked_for_unless_the_source_asks_itself(self, api, make, form):
        records_of(api, make, BODIES[form]([1]), {"format": form})
        assert form.replace("jsonl", "ndjson") in api.asked[0].headers["Accept"]
        records_of(api, make, BODIES[form]([1]), {"format": form}, request={"path": "/", "headers": {"accept": "a/b"}})
        assert api.asked[1].headers["Accept"] == "a/b"

    def test_predicates_see_an_error_in_json_and_the_rows_of_a_page(self, api, make, form):
        # A line of JSON is a line of JSON Lines; it is no row.
        seen = {"csv": "response", "jsonl": "response[0]"}[form]
        quota = {"action": "FAIL", "message": "the quota is used up"}
        rules = [
            {"status": 200, "predicate": f"{seen}.error.code == 'QUOTA'", **quota},
            {"status": 503, "predicate": "response.error.code == 'QUOTA'", **quota},
            {"predicate": "response[0].id == 'last'", "action": "END"},
        ]
        handler = {**QUICK, "rules": rules}
        for status in (200, 503):
            reply = Reply({"error": {"code": "QUOTA"}}, status)
            with pytest.raises(SourceError, match="the quota is used up"):
                records_of(api, make, reply, {"format": form}, error_handler=handler)
        api.answers(text(BODIES[form](["last"])))
        page = make(records={"format": form}, error_handler=handler).read_page({}, None)
        assert (list(page.records), page.next) == ([], Complete())

    def test_the_format_is_part_of_the_fingerprint(self, make, form):
        assert make(records={"format": form}).fingerprint() != make(records={}).fingerprint()
        assert make(records={"format": "json"}).fingerprint() == make(records={}).fingerprint()


@pytest.mark.parametrize(
    "records",
    [
        {"format": "xml"},
        {"format": "csv", "path": "data"},
        {"format": "jsonl", "columns": ["a"]},
        {"delimiter": ";"},
        {"format": "csv", "columns": ["a", "a"]},
        {"format": "csv", "columns": []},
        {"format": "csv", "delimiter": ";;"},
        {"format": "csv", "delimiter": '"'},
    ],
    ids=str,
)
def test_a_mistake_is_found_when_the_document_is_read(records):
    with raises(SourceDefinitionError):
        whole_definition({"base_url": "https://api.example.com", "streams": {"a": {"records": records}}})
