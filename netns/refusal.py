"""What the relay never dials, and how a client hears in its own protocol that it is refused (pure)."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ipaddress import IPv4Network, IPv6Network

ALERT = b"\x15\x03\x03\x00\x02\x02\x70"
"""TLS: fatal, unrecognized_name."""

_never: list[IPv4Network | IPv6Network] = []


def never_dialled(address: str) -> bool:
    """Whether no lease may reach ``address``, whatever its rules say: this host itself, metadata, no place at all."""
    import ipaddress

    from stockade.netns.ruleset import METADATA4, METADATA6, NEVER4, NEVER6

    if not _never:
        listed = (part for each in (METADATA4, METADATA6, NEVER4, NEVER6) for part in each.strip("{} ").split(", "))
        _never.extend([ipaddress.ip_network(each) for each in listed])
    try:
        asked = ipaddress.ip_address(address)
    except ValueError:
        return True
    return any(asked in network for network in _never)


def forbidden(reason: str) -> bytes:
    """The answer to an HTTP request that is refused."""
    body = f"stockade refused this request: {reason}\n".encode("ascii", "backslashreplace")
    head = "HTTP/1.1 403 Forbidden\r\nContent-Type: text/plain\r\nConnection: close\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
