"""One session inside the proxy: its rules, its authority, its secrets, and the records of its requests.

Knows nothing of mitmproxy. What the supervisor sent is checked again: a session that can't be made is a ``ValueError``
that names no secret.
"""

from __future__ import annotations

import time

from stockade.netns.edge.ca import Authority
from stockade.netns.edge.mask import SHORTEST, Masker
from stockade.netns.edge.requests import shown_path
from stockade.netns.edge.rules import header_fault
from stockade.policies.edge import EdgeRule
from stockade.policies.hosts import parse_rule

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from OpenSSL import SSL

    from stockade.netns.edge.heads import Place

MOST_CONNECTIONS = 512
MOST_WAITING = 32 << 20
"""Bytes of heads of requests that are not over, in a session."""
LONGEST_METHOD, LONGEST_REASON = 40, 400


class Session:
    """``told`` takes the fields of a record; ``upstream`` verifies servers."""

    def __init__(self, asked: dict[str, Any], upstream: SSL.Context, told: Callable[..., None]) -> None:
        self.rules = tuple(_rule(each) for each in asked["rules"])
        self.values = tuple(_values(each["headers"]) for each in asked["rules"])
        self.upstream = upstream
        self.mask_queries = bool(asked["mask_queries"])
        self.masker = Masker(_secrets(asked["secrets"], self.values))
        self.authority = Authority(str(rule.host.name) for rule in self.rules)
        self.told = told
        self.connections: dict[int, Callable[[], None]] = {}
        """What cuts each connection."""
        self.waiting = 0
        """Bytes of heads of requests that are not over."""
        self.rests_until = 0.0
        """A time of ``time.monotonic``; until then its connections read nothing, and others have their turn."""


class Pending:
    """A request that is not over."""

    def __init__(self, session: Session, connection: int, place: Place) -> None:
        self.session, self.connection, self.place = session, connection, place
        self.began = time.monotonic()
        self.method = self.target = self.reason = ""
        self.status: int | None = None
        self.size = 0
        self.transformed = self.upgrade = False
        self._told = False
        self._cost = 0

    def cost(self, size: int) -> bool:
        """Count the bytes of its head until it is over; False if that is too much for the session."""
        self._cost = size
        self.session.waiting += size
        return self.session.waiting <= MOST_WAITING

    def tell(self) -> None:
        """Record it, once."""
        if self._told:
            return
        self._told = True
        self.session.waiting -= self._cost
        masker = self.session.masker
        self.session.told(
            connection=self.connection,
            method=masker.text(self.method[:LONGEST_METHOD]),
            host=self.place.host,
            port=self.place.port,
            path=shown_path(masker.text(self.target), mask_query=self.session.mask_queries),
            status=self.status,
            bytes=self.size,
            duration=time.monotonic() - self.began,
            transformed=self.transformed,
            reason=masker.text(self.reason)[:LONGEST_REASON],
            time=self.began,
        )


def _rule(asked: dict[str, Any]) -> EdgeRule:
    host = parse_rule(str(asked["host"]))
    if host.name is None or host.protocol != "tcp" or asked["scheme"] not in ("https", "http"):
        raise ValueError("an entry of network.edge is not for a name, over TCP, by https or http")
    methods, paths = tuple(map(str, asked["methods"])), tuple(map(str, asked["paths"]))
    return EdgeRule(host, str(asked["scheme"]), methods, paths, ())


def _values(headers: list[list[str]]) -> tuple[tuple[str, str], ...]:
    """Headers as they are put in: latin-1 text that holds the bytes."""
    values = tuple((str(name), str(value).encode("utf-8").decode("latin-1")) for name, value in headers)
    for name, value in values:
        if fault := header_fault(name, value):
            raise ValueError(f"a header of network.edge can't be sent: {fault}")
    return values


def _secrets(secrets: list[str], values: tuple[tuple[tuple[str, str], ...], ...]) -> list[str]:
    """What is masked: the secrets, and each header's value that holds one in some form."""
    if any(len(str(secret).encode("utf-8")) < SHORTEST for secret in secrets):
        raise ValueError(f"a secret of less than {SHORTEST} bytes is too short to be masked")
    masker = Masker(secrets)
    texts = [value.encode("latin-1").decode("utf-8") for pairs in values for _name, value in pairs]
    return [*secrets, *(text for text in texts if masker.spans(text.encode("utf-8")))]
