"""What a name in a tag means: a helper, a block parameter or a variable. The rules are those of handlebars.js.

Two things are found here, while a template is compiled, that handlebars.js finds only if it gets there: helpers that do
not exist, and helpers with too few or too many arguments.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches

from airflow_provider_rfr.webhooks.handlebars.helpers import HELPERS, Helper
from airflow_provider_rfr.webhooks.handlebars.nodes import Argument, Call, Expression, HelperCall, Literal, Path
from airflow_provider_rfr.webhooks.handlebars.terms import Problem, shown

BLOCKS = ("if", "unless", "each", "with")
# Of handlebars.js itself: these names never mean a variable, not even alone or behind ``this.``.
_KNOWN = frozenset((*BLOCKS, "lookup", "log", "helperMissing", "blockHelperMissing"))


@dataclass(frozen=True)
class Subject:
    """What a block is, and is about."""

    kind: str
    expression: Expression
    named: tuple[tuple[str, Expression], ...] = ()


class Meaning:
    """Reads names where these block parameters are known."""

    def __init__(self, block_params: frozenset[str] = frozenset()) -> None:
        self._params = block_params

    def within(self, names: Sequence[str]) -> Meaning:
        """Reads names in a block that has these parameters, inside of where this one reads."""
        return Meaning(self._params.union(names)) if names else self

    def mustache(self, call: Call) -> Expression:
        """What ``{{...}}`` prints."""
        if self._is_variable(call, alone=call.bare):
            return self._path(call.name)
        return self._helper(call)

    def block(self, call: Call) -> Subject:
        """What ``{{#...}}`` is about."""
        if self._is_variable(call, alone=call.bare):
            return Subject("section", self._path(call.name))
        name = call.name.parts[0] if call.name.parts else ""
        if name not in BLOCKS:
            helper = self._helper(call).helper
            raise Problem(
                f"{helper.name} gives a value and is no block; write {{{{#if ({helper.name} ...)}}}}", call.at
            )
        if len(call.params) != 1:
            raise Problem(f"{{{{#{name}}}}} takes exactly one argument", call.at)
        named = tuple((key, self.argument(value)) for key, value in call.hash)
        return Subject(name, self.argument(call.params[0]), named)

    def argument(self, argument: Argument) -> Expression:
        """What a helper or block is given."""
        if isinstance(argument, Literal):
            return argument
        if isinstance(argument, Path):
            return self._path(argument)
        if self._is_variable(argument, alone=False):
            return self._path(argument.name)
        return self._helper(argument)

    def _is_variable(self, call: Call, *, alone: bool) -> bool:
        """``alone``: nothing is given, so that only a helper of handlebars.js itself is one."""
        path = call.name
        if path.simple and path.parts[0] in self._params:
            return True
        return alone and not (path.simple and path.parts[0] in _KNOWN)

    def _path(self, path: Path) -> Path:
        known = bool(path.parts) and not path.depth and not path.scoped and path.parts[0] in self._params
        return replace(path, block_param=True) if known else path

    def _helper(self, call: Call) -> HelperCall:
        path = call.name
        name = path.parts[0] if path.parts else ""
        if name in BLOCKS:
            raise Problem(f"{name} is a block; write {{{{#{name} ...}}}}...{{{{/{name}}}}}", call.at)
        if name in HELPERS and (path.simple or name in _KNOWN):
            helper = HELPERS[name]
            _check(helper, call)
            params = tuple(map(self.argument, call.params))
            return HelperCall(helper, params, tuple((key, self.argument(value)) for key, value in call.hash), call.at)
        raise Problem(f"there is no helper {path.label}{_suggestion(path.original)}", call.at)


def _suggestion(name: str) -> str:
    if name.startswith("else"):
        return "; write {{else if ...}}"
    near = get_close_matches(name[:40], [*HELPERS, *BLOCKS], n=2, cutoff=0.6)
    return f"; did you mean {' or '.join(near)}?" if near else f"; there are {', '.join([*BLOCKS, *HELPERS])}"


def _check(helper: Helper, call: Call) -> None:
    count = len(call.params)
    if count < helper.least or (helper.most is not None and count > helper.most):
        raise Problem(f"{helper.name} was given {count} arguments; write {helper.usage}", call.at)
    unknown = [] if helper.free_names else [name for name, _ in call.hash if name not in helper.named]
    if unknown:
        raise Problem(f"{helper.name} takes no argument {shown(unknown[0])}; write {helper.usage}", call.at)
