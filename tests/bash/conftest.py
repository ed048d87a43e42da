"""Fixtures of the tests of the bash layer."""

from __future__ import annotations

import pytest
from boxes import own_state  # noqa: F401  (for every test: caches of its own)
from clirun import Place
from hypothesis import settings

settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


@pytest.fixture(scope="session")
def warm_cache(tmp_path_factory):
    """One cache for all: the host is probed once."""
    return str(tmp_path_factory.mktemp("cache"))


@pytest.fixture
def place(warm_cache):
    made = Place(warm_cache)
    yield made
    made.remove()
