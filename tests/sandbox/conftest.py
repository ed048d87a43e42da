"""Fixtures of the command line's tests; properties are judged by their results, never by a busy machine's clock."""

from __future__ import annotations

import pytest
from clirun import Place
from hypothesis import settings

settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


@pytest.fixture(scope="session")
def warm_cache(tmp_path_factory):
    """One cache for the tests that don't look at it: the host is probed once."""
    return str(tmp_path_factory.mktemp("cache"))


@pytest.fixture
def place(warm_cache):
    made = Place(warm_cache)
    yield made
    made.remove()
