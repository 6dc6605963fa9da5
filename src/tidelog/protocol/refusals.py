"""The response that refuses a whole request, made from the schemas of both.

Owns what follows from them: where the error goes, and which elements of the request the response
names. Not the reasons: see the handlers. Rules:

- An array of the response that has errors answers the array of the request whose elements are named
  by the same fields: those of one name (``partition`` and ``partition_index`` are one) that have no
  default in the response. An array of plain values names elements by these.
- The error goes to the top where the version has a place for it, otherwise into each element, and
  into elements with an ``error_message`` in any case: there a client finds the sentence.
- A response that says more than its elements (brokers, counts) and has no error at its top cannot
  be made: it would look like an answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

from tidelog.model.work import Work, finish
from tidelog.protocol import codec, messages
from tidelog.protocol.schema import Field, Message

ERROR, SENTENCE, THROTTLE = "error_code", "error_message", "throttle_time_ms"

ELEMENT_BYTES = 200
"""Memory of an element of a response under construction."""


class _Level(NamedTuple):
    """What a response, or an element of it, gets."""

    made: type
    error: bool
    sentence: bool
    same: tuple[tuple[str, str], ...]
    """Fields of the request's element, "" for the element itself, and of the response's."""
    lists: tuple[tuple[str, str, _Level], ...]
    """Arrays of the request, those of the response that answer them, and their elements."""

    def refuse(self, asked: Any, error: int, sentence: str | None) -> Work[Any]:
        made = self.without_lists(asked, error, sentence)
        for source, target, level in self.lists:
            elements = []
            for element in getattr(asked, source) or ():
                yield ELEMENT_BYTES
                if level.lists:
                    elements.append((yield from level.refuse(element, error, sentence)))
                else:
                    elements.append(level.without_lists(element, error, sentence))
            setattr(made, target, elements)
        return made

    def without_lists(self, asked: Any, error: int, sentence: str | None) -> Any:
        made = self.made()
        if self.error:
            made.error_code = error
        if self.sentence and sentence is not None:
            made.error_message = sentence
        for source, target in self.same:
            setattr(made, target, getattr(asked, source) if source else asked)
        return made


def refused_in_steps(
    api_key: int, version: int, request: Any, error: int, sentence: str | None = None
) -> Work[Any]:
    """Return a response with ``error`` for everything in the request, or None if there is none."""
    level = _top(api_key, version)
    return None if level is None else (yield from level.refuse(request, error, sentence))


def refused(
    api_key: int, version: int, request: Any, error: int, sentence: str | None = None
) -> Any:
    """Do as ``refused_in_steps``, at once."""
    return finish(refused_in_steps(api_key, version, request, error, sentence))


@cache
def _top(api_key: int, version: int) -> _Level | None:
    api = codec.api_of(api_key)
    pair = _Pair(api.request, api.response, version)
    level = pair.level("", api.request.fields, api.response.fields, said=False)._replace(same=())
    if level.error:
        return level
    answered = {THROTTLE, *(target for _, target, _ in level.lists)}
    more = {
        x.name
        for x in api.response.fields
        if version in x.versions and x.default is None and x.tag is None
    }
    return level if level.lists and answered.issuperset(more) else None


class _Pair(NamedTuple):
    """The two messages of an API in a version."""

    request: Message
    response: Message
    version: int

    def level(
        self, name: str, asked: list[Field] | Field, answered: list[Field], said: bool
    ) -> _Level:
        """Compare two lists of fields; ``said``: an error above this level says it already."""
        fields = {x.name: x for x in answered if self.version in x.versions}
        sentence = SENTENCE in fields
        error = ERROR in fields and (sentence or not said)
        arrays = asked if isinstance(asked, list) else []
        return _Level(
            messages.classes_of(self.response)[name],
            error,
            sentence,
            tuple(self.same(asked, answered)),
            tuple(self.lists(arrays, answered, said or error)),
        )

    def same(self, asked: list[Field] | Field, answered: list[Field]) -> Iterator[tuple[str, str]]:
        names = [x for x in answered if not x.array and x.default is None and x.name != ERROR]
        if isinstance(asked, Field):
            named = next((x.name for x in names if x.type == asked.type), None)
            return iter([("", named)] if named is not None else [])
        by_key = {x.name.removesuffix("_index"): x for x in asked if not x.array}
        pairs = ((by_key.get(x.name.removesuffix("_index")), x.name) for x in names)
        return ((source.name, target) for source, target in pairs if source is not None)

    def lists(
        self, asked: list[Field], answered: list[Field], said: bool
    ) -> Iterator[tuple[str, str, _Level]]:
        sources = [x for x in asked if x.array and self.version in x.versions]
        for target in answered:
            if not target.array or self.version not in target.versions:
                continue
            if (inner := self.response.structs.get(target.type)) is None:
                continue
            for source in sources:
                of = self.request.structs.get(source.type)
                elements = source if of is None else of.fields
                level = self.level(target.type, elements, inner.fields, said)
                if level.same and (level.error or level.lists):
                    yield source.name, target.name, level
                    break
