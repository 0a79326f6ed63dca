"""Pages of a made-up API: which page a request asks for, and answers that lead from one page to the next.

Of a cursor the manifest says only by templates what an answer must hold. So values are tried in the places that its
templates read, until the CDK's own evaluation gives a token for each page and none for the last.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from typing import Any, Final

from jinja2 import Environment, TemplateError, nodes

_ROOTS: Final = frozenset({"response", "headers", "last_record"})
_MOST_PLACES: Final = 3
_MOST_RECORDS: Final = 1000
_LARGE_PAGE: Final = 300
_ABSENT: Final = object()

# What a place holds on page i of n, and on the last one.
_KINDS: Final[Mapping[str, Callable[[int, int], Any]]] = {
    "as it is": lambda i, n: _ABSENT,
    "token": lambda i, n: f"page-{i + 1}" if i + 1 < n else None,
    "address": lambda i, n: f"{{made-up}}/more?made_up_page={i + 1}" if i + 1 < n else None,
    "following number": lambda i, n: i + 2 if i + 1 < n else None,
    "number": lambda i, n: i + 1,
    "count": lambda i, n: n,
    "more": lambda i, n: i + 1 < n,
    "done": lambda i, n: i + 1 == n,
    "word": lambda i, n: "true" if i + 1 < n else "false",
}


@dataclass(slots=True)
class MadeUpAnswer:
    """A page of the API.

    :ivar root: what templates call ``response``, a part of the body
    """

    body: Any
    root: Any
    records: list[dict[str, Any]]
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class MadeUpPaging:
    """
    :ivar tokens: number of the page for each token, as text
    :ivar option: where in a request the token is
    """

    make: Callable[[int], MadeUpAnswer]
    tokens: Mapping[str, int]
    option: Mapping[str, Any] | None

    @classmethod
    def of(
        cls,
        paginator: Mapping[str, Any],
        parameters: Mapping[str, Any],
        config: Mapping[str, Any],
        answer: Callable[[int, int], MadeUpAnswer],
    ) -> MadeUpPaging:
        """Return the paging of a paginator.

        :param answer: a page by its number and its count of records, without anything for paging
        """
        strategy = paginator.get("pagination_strategy") or {}
        size = rendered(strategy.get("page_size"), parameters, config)
        size = size if isinstance(size, int) else None
        count = min(size or 3, _MOST_RECORDS)
        pages = 2 if count > _LARGE_PAGE else 3
        counts = [count] * (pages - 1) + [max(1, count // 2)]
        kind, option = strategy.get("type"), paginator.get("page_token_option")
        tokens: dict[str, int] = {}
        if kind == "PageIncrement":
            first = strategy.get("start_from_page", 0)
            tokens = {str(first + page): page for page in range(pages)}
        elif kind == "OffsetIncrement":
            tokens = {str(count * page): page for page in range(pages)}
        elif kind == "CursorPagination":
            pages_and_tokens = _Search(strategy, parameters, config, answer).found(size, option)
            if pages_and_tokens is not None:
                return cls(pages_and_tokens[0], pages_and_tokens[1], option)
        else:
            counts = [3]
        return cls(lambda page: answer(page, counts[page] if page < len(counts) else 0), tokens, option)

    def answer(self, page: int) -> MadeUpAnswer:
        return self.make(page)

    def page_of(self, url: str, headers: Mapping[str, str], body: bytes) -> int:
        from tests.manifests.api import values_of

        values = values_of(url, headers, body)
        linked = values["request_parameter"].get("made_up_page")
        if linked:
            return int(linked)
        tokens = self._asked(values)
        for value in tokens:
            if value in self.tokens:
                return self.tokens[value]
        # A number beyond the last page, of a paginator that reads until one is empty.
        is_beyond = bool(self.option) and bool(self.tokens) and any(value.isdigit() for value in tokens)
        return len(set(self.tokens.values())) if is_beyond else 0

    def _asked(self, values: Mapping[str, Mapping[str, str]]) -> list[str]:
        option = self.option or {}
        if option.get("type") == "RequestPath":
            return list(values["path"].values())
        if option.get("inject_into") in values:
            fields = values[option["inject_into"]]
            path = option.get("field_path") or [option.get("field_name")]
            names = {".".join(map(str, path)), str(path[-1]).lower()}
            return [
                fields[name]
                for name in fields
                if name in names or any(name.startswith(f"{beginning}.") for beginning in names)
            ]
        return [value for fields in values.values() for value in fields.values()]


class _Search:
    """Looks for answers that a cursor's templates lead through."""

    def __init__(
        self,
        strategy: Mapping[str, Any],
        parameters: Mapping[str, Any],
        config: Mapping[str, Any],
        answer: Callable[[int, int], MadeUpAnswer],
    ) -> None:
        self._cursor, self._stop = strategy.get("cursor_value", ""), strategy.get("stop_condition")
        self._parameters, self._config, self._answer = parameters, config, answer
        templates = [str(template) for template in (self._cursor, self._stop) if template is not None]
        self._places = places_of(templates)[:_MOST_PLACES]
        self._numbers = [int(digits) for text in templates for digits in re.findall(r"\b\d+\b", text)]

    def found(
        self, size: int | None, option: Mapping[str, Any] | None
    ) -> tuple[Callable[[int], MadeUpAnswer], Mapping[str, int]] | None:
        """Return pages by number, and their tokens; None if no values were found."""
        kinds = list(_KINDS)
        if (option or {}).get("type") == "RequestPath":
            kinds.sort(key=lambda kind: kind != "address")
        counts = [size or 3, *(number for number in self._numbers if 1 < number <= _MOST_RECORDS)]
        for count in dict.fromkeys(min(one, _MOST_RECORDS) for one in counts):
            pages = 2 if count > _LARGE_PAGE else 3
            for chosen in product(kinds, repeat=len(self._places)):
                found = self._tried(chosen, count, pages)
                if found is not None:
                    return found
        return None

    def _tried(
        self, chosen: Sequence[str], count: int, pages: int
    ) -> tuple[Callable[[int], MadeUpAnswer], Mapping[str, int]] | None:
        def page(number: int, ending: int = 0) -> MadeUpAnswer:
            is_last = number + 1 >= pages
            answer = copy.deepcopy(self._answer(number, max(1, count // 2) if is_last else count))
            for where, kind in zip(self._places, chosen, strict=True):
                self._put(answer, where, _KINDS[kind](number, pages), ending)
            return answer

        tokens = {_text(self._token(page(number), count)): number + 1 for number in range(pages - 1)}
        if len(tokens) < pages - 1 or any(not token or "{{" in token or "{%" in token for token in tokens):
            return None
        for ending in range(len(_ENDINGS)):
            if self._token(page(pages - 1, ending), count) is None:
                return partial(page, ending=ending), tokens
        return None

    @staticmethod
    def _put(answer: MadeUpAnswer, where: Sequence[Any], value: Any, ending: int) -> None:
        if value is _ABSENT:
            return
        if where[0] == "headers":
            if where[1:3] == ("link", "next"):
                if value is not None:
                    more = "" if where[3:4] == ("url",) else f'; {where[-1]}="{value}"'
                    address = value if where[3:4] == ("url",) else "{made-up}/more"
                    answer.headers["Link"] = f'<{address}>; rel="next"{more}'
            elif value is not None:
                answer.headers[str(where[1])] = str(value)
            return
        for target in answer.records if where[0] == "last_record" else [answer.root]:
            if value is None:
                _ENDINGS[ending](target, where[1:])
            else:
                place(target, where[1:], value)

    def _token(self, answer: MadeUpAnswer, size: int) -> Any:
        """Return the token of the CDK's strategy, None where it stops."""
        from airbyte_cdk.sources.declarative.interpolation.interpolated_boolean import InterpolatedBoolean
        from requests.utils import parse_header_links

        headers: dict[str, Any] = dict(answer.headers)
        links = parse_header_links(answer.headers.get("Link", "")) if "Link" in answer.headers else []
        headers["link"] = {link.get("rel") or link.get("url"): link for link in links}
        variables = {
            "response": answer.root,
            "headers": headers,
            "last_record": answer.records[-1] if answer.records else None,
            "last_page_size": len(answer.records),
            "page_size": size,
        }
        if self._stop and InterpolatedBoolean(str(self._stop), parameters=self._parameters).eval(
            self._config, **variables
        ):
            return None
        return rendered(self._cursor, self._parameters, self._config, **variables) or None


def _text(token: Any) -> str:
    """Return a token as it stands in a request, or an empty text if it can't be one."""
    if isinstance(token, dict) and len(token) == 1:
        return _text(next(iter(token.values())))
    return str(token) if isinstance(token, (str, int)) and not isinstance(token, bool) else ""


def _without(target: Any, path: Sequence[Any]) -> None:
    place(target, path, None)
    parent = placed(target, path[:-1])
    if isinstance(parent, dict):
        parent.pop(path[-1], None)


# How an API may say that no page follows.
_ENDINGS: Final[tuple[Callable[[Any, Sequence[Any]], None], ...]] = (
    lambda target, path: place(target, path, None),
    _without,
    lambda target, path: place(target, path, ""),
    lambda target, path: place(target, path[:-1], None) if path[1:] else None,
    lambda target, path: _without(target, path[:-1]) if path[1:] else None,
    lambda target, path: place(target, path[:-1], {}) if path[1:] else None,
)


def rendered(template: Any, parameters: Mapping[str, Any], config: Mapping[str, Any], **more: Any) -> Any:
    """Evaluate a template as the CDK does."""
    from airbyte_cdk.sources.declarative.interpolation.interpolated_string import InterpolatedString

    if not isinstance(template, str):
        return template
    try:
        return InterpolatedString.create(template, parameters=parameters).eval(config, **more)
    except Exception:
        return None


def places_of(templates: Iterable[str], roots: Collection[str] = _ROOTS) -> list[tuple[Any, ...]]:
    """List the places that templates read in answers, headers and last records, longest paths alone."""
    candidates: dict[tuple[Any, ...], None] = {}
    for template in templates:
        text = template if "{{" in template or "{%" in template else "{{ " + template + " }}"
        try:
            expressions = list(Environment().parse(text).find_all((nodes.Expr,)))
        except TemplateError:
            continue
        for node in expressions:
            candidates.update(dict.fromkeys(_paths(node)))
    paths = [path for path in candidates if len(path) > 1 and path[0] in roots]
    return [path for path in paths if not any(other[: len(path)] == path for other in paths if other != path)]


def _paths(node: nodes.Expr) -> Iterator[tuple[Any, ...]]:
    path = _path(node)
    if path:
        yield path
    if isinstance(node, nodes.Compare) and isinstance(node.expr, nodes.Const):
        # 'next' in response['paging']
        inside = [_path(operand.expr) for operand in node.ops if operand.op in ("in", "notin")]
        yield from ((*path, node.expr.value) for path in inside if path)


def _path(node: nodes.Expr) -> tuple[Any, ...]:
    if isinstance(node, nodes.Name):
        return (node.name,)
    if isinstance(node, nodes.Getattr):
        before = _path(node.node)
        is_method = node.attr in ("get", "split", "items", "keys", "values", "replace")
        return (*before, node.attr) if before and not is_method else ()
    if isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Const):
        before = _path(node.node)
        return (*before, node.arg.value) if before else ()
    if isinstance(node, nodes.Call) and isinstance(node.node, nodes.Getattr) and node.node.attr == "get" and node.args:
        before, key = _path(node.node.node), node.args[0]
        return (*before, key.value) if before and isinstance(key, nodes.Const) else ()
    return ()


def place(target: Any, path: Sequence[Any], value: Any) -> None:
    """Put a value where a path leads to; of a list into all its items."""
    if not path:
        return
    if isinstance(target, list):
        for item in target:
            place(item, path[1:] if isinstance(path[0], int) else path, value)
    elif isinstance(target, dict):
        if len(path) == 1:
            target[path[0]] = value
            return
        if not isinstance(target.get(path[0]), (dict, list)):
            target[path[0]] = {}
        place(target[path[0]], path[1:], value)


def placed(target: Any, path: Sequence[Any]) -> Any:
    """Return the value at a path, or None."""
    for part in path:
        target = target.get(part) if isinstance(target, dict) else None
    return target
