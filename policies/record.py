"""Frozen, slotted records at next to no import cost.

``dataclasses`` costs 11 ms to import (it pulls in ``inspect``), which is more than a whole confined start.
Type checkers see an ordinary frozen dataclass. Files that define records need
``from __future__ import annotations``.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any, Self, dataclass_transform
else:

    def dataclass_transform(**_options):  # noqa: ANN003, ANN201
        return lambda cls: cls


@dataclass_transform(frozen_default=True, kw_only_default=False)
class RecordType(type):
    """Turns the annotations of a class body into slots and defaults."""

    _fields: tuple[str, ...]
    _defaults: dict[str, Any]

    def __new__(mcs, name: str, bases: tuple[type, ...], body: dict[str, Any]) -> RecordType:
        own = tuple(field for field in body.get("__annotations__", ()) if not field.startswith("_"))
        defaults = {field: body.pop(field) for field in own if field in body}
        body["__slots__"] = own
        cls = super().__new__(mcs, name, bases, body)
        inherited = getattr(cls, "_fields", ())
        cls._fields = (*inherited, *own)
        cls._defaults = {**getattr(cls, "_defaults", {}), **defaults}
        return cls


class Record(metaclass=RecordType):
    """A value: compared by its fields, hashable, never changed after it was made."""

    def __init__(self, *values: Any, **named: Any) -> None:
        cls = type(self)
        fields = cls._fields
        if len(values) > len(fields):
            raise TypeError(f"{cls.__name__} takes {len(fields)} values, got {len(values)}")
        given = dict(zip(fields, values, strict=False))
        for field, value in named.items():
            if field not in fields or field in given:
                raise TypeError(f"{cls.__name__} got an unexpected or repeated field {field!r}")
            given[field] = value
        for field in fields:
            if field in given:
                object.__setattr__(self, field, given[field])
            elif field in cls._defaults:
                object.__setattr__(self, field, cls._defaults[field])
            else:
                raise TypeError(f"{cls.__name__} is missing the field {field!r}")

    def __setattr__(self, field: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__} is frozen: can't set {field!r}")

    def __delattr__(self, field: str) -> None:
        raise AttributeError(f"{type(self).__name__} is frozen: can't delete {field!r}")

    def __iter__(self) -> Iterator[Any]:
        return iter([getattr(self, field) for field in type(self)._fields])

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash((type(self), tuple(self)))

    def __repr__(self) -> str:
        inner = ", ".join(f"{field}={getattr(self, field)!r}" for field in type(self)._fields)
        return f"{type(self).__name__}({inner})"

    def __reduce__(self) -> tuple[type, tuple[Any, ...]]:
        return type(self), tuple(self)

    def replace(self, **changes: Any) -> Self:
        """A copy with some fields changed; an unknown field is a ``TypeError``."""
        return type(self)(**{**self.as_dict(), **changes})

    def as_dict(self) -> dict[str, Any]:
        """Field names and values, in order of declaration; values are not converted."""
        return {field: getattr(self, field) for field in type(self)._fields}
