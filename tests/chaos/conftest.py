"""Soak tests are left out unless they are asked for: that is not a skip, ``scripts/test`` and ``scripts/soak`` ask."""

from __future__ import annotations

import amount
import leftovers
import pytest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    left_out = [item for item in items if item.get_closest_marker("soak")] if not amount.ASKED else []
    if left_out:
        items[:] = [item for item in items if item not in left_out]
        config.hook.pytest_deselected(items=left_out)


@pytest.fixture
def place() -> Iterator[leftovers.Place]:
    with leftovers.place() as made:
        yield made


@pytest.fixture
def watch(place: leftovers.Place) -> Iterator[leftovers.Watch]:
    """Nothing may be left at the end of the test, whatever else it looks at."""
    with leftovers.subreaper():
        made = leftovers.Watch(place)
        yield made
        made.nothing_left()
