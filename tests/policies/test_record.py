"""The cheap frozen record behaves like the frozen dataclass that it stands for."""

from __future__ import annotations

import copy
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stockade.policies.record import Record


class Point(Record):
    """Two fields, one with a default."""

    x: int
    y: int = 7

    @property
    def total(self):
        return self.x + self.y


class Named(Point):
    name: str = "none"


class Other(Record):
    x: int
    y: int = 7


class Holder(Record):
    _hidden: int
    values: tuple[int, ...] = ()


def test_fields_come_by_position_by_name_and_by_default():
    assert (Point(1).x, Point(1).y) == (1, 7)
    assert Point(1, 2) == Point(x=1, y=2) == Point(1, y=2)
    assert Point(3).total == 10


def test_a_subclass_has_the_fields_of_its_base_first():
    assert Named(1, 2, "n") == Named(name="n", y=2, x=1)
    assert tuple(Named(1)) == (1, 7, "none")
    assert Named._fields == ("x", "y", "name")


@pytest.mark.parametrize(
    ("values", "named", "said"),
    [
        ((), {}, "missing the field 'x'"),
        ((1, 2, 3), {}, "takes 2 values, got 3"),
        ((1,), {"x": 1}, "unexpected or repeated field 'x'"),
        ((1,), {"z": 1}, "unexpected or repeated field 'z'"),
    ],
)
def test_wrong_fields_are_refused(values, named, said):
    with pytest.raises(TypeError, match=said):
        Point(*values, **named)


def test_nothing_can_be_changed_added_or_deleted():
    point = Point(1)
    for action in (
        lambda: setattr(point, "x", 2),
        lambda: setattr(point, "z", 2),
        lambda: delattr(point, "x"),
    ):
        with pytest.raises(AttributeError, match="frozen"):
            action()
    assert point == Point(1)
    assert not hasattr(point, "__dict__")


def test_equality_goes_by_type_and_fields():
    assert Point(1, 2) == Point(1, 2)
    assert Point(1, 2) != Point(2, 1)
    assert Point(1) != Other(1)
    assert Point(1) != (1, 7)
    assert hash(Point(1)) == hash(Point(1, 7))
    assert len({Point(1), Point(1, 7), Other(1)}) == 2


def test_replace_copies_and_refuses_unknown_fields():
    point = Named(1)
    assert point.replace(y=9) == Named(1, 9)
    assert type(point.replace()) is Named
    assert point == Named(1)
    with pytest.raises(TypeError, match="'z'"):
        point.replace(z=1)


def test_private_names_are_no_fields():
    assert Holder._fields == ("values",)
    assert Holder((1,)).as_dict() == {"values": (1,)}


@given(st.integers(), st.one_of(st.none(), st.text(), st.tuples(st.integers())))
def test_it_survives_copies_pickles_and_its_own_views(x, y):
    point = Point(x, y)
    assert copy.copy(point) == copy.deepcopy(point) == pickle.loads(pickle.dumps(point)) == point
    assert Point(**point.as_dict()) == Point(*point) == point
    assert repr(point) == f"Point(x={x!r}, y={y!r})"
