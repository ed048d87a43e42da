"""What becomes of one DNS query (pure): read it, decide, screen what it leads to, build the reply.

A name that is not allowed "does not exist" (NXDOMAIN with the extended error *Blocked*). REFUSED would be the plainer
word, but C libraries take it for an outage: glibc asks again, reports "temporary failure" and ends its walk
through search domains; musl waits out its 5 s. An empty answer ends musl's walk. NXDOMAIN lets all go on at once.
Opens nothing and resolves nothing; its counterpart with the sockets is ``netns.resolver``.
"""

from __future__ import annotations

from stockade.policies.hosts import METADATA, matches_name
from stockade.policies.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

    from dns.edns import EDEOption
    from dns.message import Message
    from dns.rcode import Rcode

    from stockade.policies.hosts import HostRule

    Address = IPv4Address | IPv6Address
    Network = IPv4Network | IPv6Network

MOST_ADDRESSES = 32
"""Of one answer; more are neither admitted nor answered."""
PLAIN_UDP = 512
LARGEST_UDP = 4096
LARGEST_QUERY = 4096
HEADER = 12
FORMERR, NOTIMP = 1, 4
ADDRESS_TYPES = {"A": 4, "AAAA": 6}
RECORD_SIZE = {"A": 16, "AAAA": 28}
"""An answer's size on the wire: its owner is a pointer to the question."""
NOT_PUBLIC = (
    "0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.0.0.0/24",
    "192.168.0.0/16", "198.18.0.0/15", "224.0.0.0/4", "240.0.0.0/4",
    "::/128", "::1/128", "64:ff9b:1::/48", "100::/64", "fc00::/7", "fe80::/10", "fec0::/10", "ff00::/8",
)  # fmt: skip
"""Where an allowed name must not lead by itself; 10.0.2.0/24, the connector's own network, is within."""
LABEL = frozenset("abcdefghijklmnopqrstuvwxyz0123456789-_")


class Question(Record):
    """One well-formed query with one question."""

    name: str
    """Lower case, A-labels, without the last dot; odd bytes escaped as in zone files. Empty for the root."""
    type: str
    internet: bool
    """Class IN."""
    message: Message
    """The query as it was asked, spelling included."""


class Verdict(Record):
    """``action``: ``resolve``; or at once ``empty`` (no such records), ``refuse`` or ``unknown`` (no such name),
    ``fail`` (no answer could be had), ``version`` (an EDNS version nobody knows)."""

    action: str
    rules: tuple[HostRule, ...] = ()
    """Those whose name was asked for."""
    why: str = ""
    """For people; sent along as extended error where the client speaks EDNS."""


# --- reading and deciding ----------------------------------------------------------------------------------


def load() -> None:
    """Import dnspython now (about 50 ms): for a service thread to do before the first query."""
    import ipaddress  # noqa: F401

    import dns.message
    import dns.rdtypes.IN.A
    import dns.rdtypes.IN.AAAA  # noqa: F401


def question(wire: bytes) -> Question | None:
    """The query in ``wire``; None if it is anything else, malformed or longer than a query can be. Never raises."""
    import dns.message
    import dns.rdataclass
    import dns.rdatatype

    if not _plain_query(wire):
        return None
    try:
        message = dns.message.from_wire(wire)
        asked = message.question[0]
        name = asked.name.to_text(omit_final_dot=True).lower()
        kind = dns.rdatatype.to_text(asked.rdtype)
    except Exception:  # whatever a parser does to bytes of the confined program, it is a bad query
        return None
    return Question("" if name == "." else name, kind, asked.rdclass == dns.rdataclass.IN, message)


def fault(wire: bytes) -> bytes | None:
    """What to say to bytes that are no question: FORMERR, NOTIMP, or nothing to what has no header or is a reply."""
    if len(wire) < HEADER or wire[2] & 0x80:
        return None
    rcode = NOTIMP if wire[2] & 0x78 else FORMERR
    return wire[:2] + bytes((0x80 | wire[2] & 0x79, 0x80 | rcode)) + bytes(8)


def decide(question: Question, rules: Sequence[HostRule], kind: str) -> Verdict:
    """``kind`` is ``allow``, ``open`` or ``record``; any other counts as ``allow``. Only ``resolve`` leads further."""
    if question.message.edns > 0:
        return Verdict("version", why="unknown EDNS version")
    matching = tuple(rule for rule in rules if matches_name(rule, question.name))
    if not question.internet or not _known(question.name, matching, kind):
        return Verdict("refuse", matching, f"{question.name[:80] or 'the root'} is not allowed here")
    if question.type not in ADDRESS_TYPES:
        return Verdict("empty", matching, "only addresses are answered here")
    if question.type == "AAAA" and kind != "record":
        return Verdict("empty", matching, "this network has no IPv6")
    return Verdict("resolve", matching)


def _plain_query(wire: bytes) -> bool:
    """Opcode QUERY, one question, no answers; TSIG and the like are for dnspython to refuse."""
    return HEADER < len(wire) <= LARGEST_QUERY and not wire[2] & 0xF8 and wire[4:10] == b"\0\1\0\0\0\0"


def _known(name: str, matching: tuple[HostRule, ...], kind: str) -> bool:
    if kind == "record":
        return name != ""
    return bool(matching) or (kind == "open" and _host_name(name))


def _host_name(name: str) -> bool:
    """Whether the host's resolver would take it for a name: not for an address, not for something odd."""
    labels = name.split(".")
    if labels[-1].isdigit() or labels[-1].startswith("0x"):
        return False
    return len(name) <= 253 and all(label and LABEL.issuperset(label) for label in labels)


# --- replying ----------------------------------------------------------------------------------------------


def reply(
    question: Question, verdict: Verdict, addresses: Sequence[str] = (), ttl: int = 0, *, stream: bool = False
) -> bytes:
    """The reply on the wire. ``addresses`` count only for ``resolve``; they are of the family that was asked for, and
    come in their order under the asked name. ``ttl`` is seconds. ``stream``: for TCP, where nothing is cut.
    """
    shown = list(addresses[:MOST_ADDRESSES]) if verdict.action == "resolve" else []
    wire = _render(question, verdict, shown, ttl, truncated=False)
    limit = 65535 if stream else _udp_limit(question)
    if len(wire) <= limit:
        return wire
    # What fits is sent along: musl before 1.2.4 has no TCP and takes it.
    surplus = -(-(len(wire) - limit) // RECORD_SIZE.get(question.type, 1))
    return _render(question, verdict, shown[: max(0, len(shown) - surplus)], ttl, truncated=True)


def _udp_limit(question: Question) -> int:
    if question.message.edns < 0:
        return PLAIN_UDP
    return min(max(question.message.payload, PLAIN_UDP), LARGEST_UDP)


def _render(question: Question, verdict: Verdict, addresses: Sequence[str], ttl: int, *, truncated: bool) -> bytes:
    import dns.flags
    import dns.message
    import dns.rrset

    answer = dns.message.make_response(question.message, recursion_available=True, our_payload=LARGEST_UDP, pad=0)
    answer.set_rcode(_rcode(verdict.action))
    if truncated:
        answer.flags |= dns.flags.TC
    if addresses:
        owner = question.message.question[0].name
        answer.answer.append(dns.rrset.from_text_list(owner, ttl, "IN", question.type, addresses))
    if answer.edns >= 0 and verdict.why:
        answer.use_edns(0, 0, LARGEST_UDP, options=[_extended_error(verdict)])
    return answer.to_wire(max_size=65535, want_shuffle=False)


def _rcode(action: str) -> Rcode:
    import dns.rcode

    codes = {
        "resolve": dns.rcode.NOERROR,
        "empty": dns.rcode.NOERROR,
        "refuse": dns.rcode.NXDOMAIN,
        "unknown": dns.rcode.NXDOMAIN,
        "version": dns.rcode.BADVERS,
    }
    return codes.get(action, dns.rcode.SERVFAIL)


def _extended_error(verdict: Verdict) -> EDEOption:
    import dns.edns

    code = dns.edns.EDECode.BLOCKED if verdict.action == "refuse" else dns.edns.EDECode.OTHER
    return dns.edns.EDEOption(code, verdict.why)


# --- screening ---------------------------------------------------------------------------------------------


def screen(
    addresses: Iterable[str], rules: Sequence[HostRule], private: bool
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The addresses that an allowed name may lead to, and the others; each in its order, once, in canonical form.

    Refused is what is not public, in IPv6 dress too, unless ``private`` or an address rule of ``rules`` covers it;
    a metadata address always; and whatever is not an address.
    """
    good: dict[str, None] = {}
    refused: dict[str, None] = {}
    for text in addresses:
        address = _address(text)
        if address is not None and _may_lead_to(address, rules, private):
            good[str(address)] = None
        else:
            refused[text if address is None else str(address)] = None
    return tuple(good), tuple(refused)


def _address(text: str) -> Address | None:
    import ipaddress

    try:
        return None if "%" in text else ipaddress.ip_address(text)
    except ValueError:
        return None


def _may_lead_to(address: Address, rules: Sequence[HostRule], private: bool) -> bool:
    every = [address, *_carried(address)]
    if any(str(one) in METADATA for one in every):
        return False
    return private or _listed(address, rules) or not any(_not_public(one) for one in every)


def _listed(address: Address, rules: Sequence[HostRule]) -> bool:
    import ipaddress

    return any(rule.network is not None and address in ipaddress.ip_network(rule.network) for rule in rules)


_networks: list[Network] = []


def _not_public(address: Address) -> bool:
    import ipaddress

    if not _networks:
        _networks.extend(map(ipaddress.ip_network, NOT_PUBLIC))
    return any(address in network for network in _networks)


def _carried(address: Address) -> list[Address]:
    """The IPv4 addresses that an IPv6 one leads to: mapped, compatible, translated, NAT64, 6to4, Teredo, ISATAP."""
    import ipaddress

    if address.version == 4:
        return []
    value = int(address)
    found = []
    if value >> 32 in (0, 0xFFFF, 0xFFFF << 16, 0x64FF9B << 64) or value >> 32 & 0xFDFFFFFF == 0x5EFE:
        found.append(value)
    if value >> 112 == 0x2002:
        found.append(value >> 80)
    if value >> 96 == 0x20010000:
        found += [value >> 64, ~value]
    return [ipaddress.IPv4Address(number & 0xFFFFFFFF) for number in found]
