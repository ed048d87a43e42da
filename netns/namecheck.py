"""Whom a connection is for, by its first bytes, and whether it may go there (pure).

Two sites can share an address, which packet rules can't tell apart. A name counts only where no server could read
another: ``hello`` and ``httphead`` are strict, what they refuse is refused here. ``relay`` acts on the decision.
"""

from __future__ import annotations

from stockade.netns.hello import LIMIT, Fault, read_hello
from stockade.netns.httphead import may_be_request, read_head
from stockade.netns.sniff import HANDSHAKE
from stockade.policies.hosts import reaches
from stockade.policies.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from stockade.policies.edge import EdgeRule
    from stockade.policies.hosts import HostRule

PASS, TRANSFORM, REFUSE = "pass", "transform", "refuse"
NEITHER = "neither TLS nor HTTP/1"
ENCRYPTED = "its ClientHello may name another server in encrypted form"
SCHEMES = {"https": "tls", "http": "http"}


class Opening(Record):
    """The first words of a connection."""

    via: str
    """``tls``, ``http`` or ``tcp`` (anything else)."""
    name: str | None
    """Server name or host: lower case, letters, digits and hyphens, without a dot at the end. None with a fault."""
    fault: str = ""
    """Why there is no name that could be relied on; empty if there is one."""
    encrypted: bool = False
    """Another name may be hidden (ECH)."""
    method: str = ""
    target: str = ""


class Decision(Record):
    """What becomes of a connection."""

    action: str
    """``pass``, ``transform`` or ``refuse``."""
    name: str | None
    reason: str = ""
    """Why it is refused, or what should be known of one that is not."""
    edge: int | None = None
    """Which edge rule applies."""


def opening(data: bytes | bytearray) -> Opening | None:
    """What ``data``, the first bytes of a stream, opens; None if more must come. At ``LIMIT`` bytes it ends. Never raises."""
    if not data:
        return None
    if data[0] == HANDSHAKE and data[1:2] in (b"", b"\3"):
        return _tls(data)
    if not may_be_request(data):
        return Opening("tcp", None, NEITHER)
    return _http(data)


def judge(
    opening: Opening,
    address: str,
    port: int,
    *,
    rules: Sequence[HostRule],
    edges: Sequence[EdgeRule],
    leads: Callable[[str, str], bool],
    kind: str,
) -> Decision:
    """What becomes of a connection to ``address`` and ``port`` that begins with ``opening``.

    ``rules`` are those of the lease, ``kind`` its kind (``open`` lets every name pass). ``leads(name, address)`` says
    whether the lease's resolver gave this address for that name, and lately.
    """
    name = opening.name
    meant = [at for at, edge in enumerate(edges) if name and reaches(edge.host, name, port)]
    if meant and name and not opening.fault and leads(name, address):
        return _at_edge(opening, name, meant, edges)
    if by_address(address, port, rules):
        return Decision(PASS, name)
    if opening.fault or name is None:
        return Decision(REFUSE, name, opening.fault or NEITHER)
    if not meant and kind != "open" and not any(reaches(rule, name, port) for rule in rules):
        return Decision(REFUSE, name, f"no rule allows {name}:{port}")
    if not leads(name, address):
        return Decision(REFUSE, name, f"{name} was not resolved to {address}")
    return Decision(PASS, name, ENCRYPTED if opening.encrypted else "")


def by_address(address: str, port: int, rules: Sequence[HostRule]) -> bool:
    """Whether a rule by address allows TCP there, whatever is said."""
    fitting = [
        each.network for each in rules if each.network and each.protocol == "tcp" and each.low <= port <= each.high
    ]
    if not fitting:
        return False
    import ipaddress

    asked = ipaddress.ip_address(address)
    return any(asked in ipaddress.ip_network(network) for network in fitting)


def _at_edge(opening: Opening, name: str, meant: Sequence[int], edges: Sequence[EdgeRule]) -> Decision:
    for at in meant:
        if SCHEMES[edges[at].scheme] == opening.via:
            return Decision(TRANSFORM, name, "", at)
    return Decision(REFUSE, name, f"the edge reaches {name} by {edges[meant[0]].scheme} alone")


def _tls(data: bytes | bytearray) -> Opening | None:
    try:
        hello = read_hello(data)
    except Fault as fault:
        return Opening("tls", None, str(fault))
    return None if hello is None else Opening("tls", hello.name, encrypted=hello.encrypted)


def _http(data: bytes | bytearray) -> Opening | None:
    try:
        head = read_head(data)
    except Fault as fault:
        return Opening("http" if b"\n" in data[:LIMIT] else "tcp", None, str(fault))
    return None if head is None else Opening("http", head.name, method=head.method, target=head.target)
