"""Leases for runs: which network a policy asks for, and its processes started by this process's keeper."""

from __future__ import annotations

import os
import select

from stockade.netns.lease import Lease, LeaseSpec
from stockade.policies.errors import SandboxUnavailable
from stockade.policies.hosts import parse_rule
from stockade.sandbox import hostcache
from stockade.sandbox.bwrap import find_helper
from stockade.sandbox.keeperlink import begin
from stockade.sandbox.messages import HOLDER_FD, receive

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from stockade.netns.upstream import Upstream
    from stockade.policies.edge import EdgeRule
    from stockade.policies.resolved import Resolved

TUN = "/dev/net/tun"
TUN_REMEDY = f'chmod 0666 {TUN} (as root), or network.connector = "slirp4netns".'


class KeptPart:
    """A process under the keeper. Closing its orders ends it."""

    def __init__(self, orders: int, events: int) -> None:
        self.orders, self.events = orders, events

        self.over = False

    def ended(self) -> bool:
        """Whether it is gone by now, or its keeper is."""
        poll = select.poll()
        poll.register(self.events, select.POLLIN)
        while not self.over and poll.poll(0):
            event = receive(self.events)
            self.over = event is None or event["kind"] != "started"
        return self.over

    def close(self) -> None:
        os.close(self.orders)
        os.close(self.events)


class KeeperSpawner:
    """Starts the parts of a lease as jobs of the keeper, under the uid that the run will have."""

    def __init__(self, credentials: tuple[int, int] | None) -> None:
        self.credentials = credentials

    def __eq__(self, other: object) -> bool:
        return isinstance(other, KeeperSpawner) and self.credentials == other.credentials

    def __hash__(self) -> int:
        return hash((KeeperSpawner, self.credentials))

    def holder(self, job: dict[str, Any], control: int) -> KeptPart:
        return self._begin([(control, HOLDER_FD)], program=None, argv=[], holder=job, credentials=self.credentials)

    def program(
        self, argv: Sequence[str], fds: Sequence[tuple[int, int]], *, as_caller: bool, leash: int | None
    ) -> KeptPart:
        words = [os.fsencode(word) for word in argv]
        credentials = None if as_caller else self.credentials
        return self._begin(fds, program=words[0], argv=words, holder=None, credentials=credentials, leash=leash)

    def _begin(self, fds: Sequence[tuple[int, int]], **parts: object) -> KeptPart:
        null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        try:
            given = [*((null, each) for each in (0, 1, 2) if each not in dict(fds).values()), *fds]
            job = {
                "confined": False,
                "service": True,
                "env": {},
                "cwd": b"/",
                "limits": [],
                "stubs": [],
                "staged": [],
                "stage": "",
                "terminal": None,
                "lease": None,
                "numbers": [number for _fd, number in given],
                **parts,
            }
            return KeptPart(*begin(job, [fd for fd, _number in given]))
        finally:
            os.close(null)


def make_lease(policy: Resolved, credentials: tuple[int, int] | None, *, upstream: Upstream | None = None) -> Lease:
    """The lease that a policy's network asks for. Not started yet. Raises SandboxUnavailable without its tools."""
    from stockade.netns.nft import locate_binding

    connector, program = ("", None) if policy.egress == "record" else choose_connector(policy)
    as_caller = credentials is not None and not open_to_all(TUN)
    if as_caller and connector == "pasta":
        raise no_connector(
            policy, "tun", f"pasta runs under the uid of the run, which can't open {TUN}", TUN_REMEDY
        )
    spec = LeaseSpec(
        kind=policy.egress,
        rules=tuple(parse_rule(text) for text in policy.allow),
        private=policy.private,
        nft=find_helper("nft"),
        site=locate_binding(),
        connector=connector,
        program=program,
        as_caller=as_caller,
        ids=credentials or (os.geteuid(), os.getegid()),
        check=policy.check,
        edge=edge_rules(policy),
        mask_queries=policy.mask_queries,
    )
    return Lease(spec, KeeperSpawner(credentials), upstream=upstream)


def edge_rules(policy: Resolved) -> tuple[EdgeRule, ...]:
    if not policy.edge:
        return ()
    from stockade.policies.edge import in_force

    return in_force(policy.edge, policy.egress)


def choose_connector(policy: Resolved) -> tuple[str, str]:
    """The connector that a policy means, and its path: left to us slirp4netns, unless it was seen to fail here."""
    usual = find_helper("slirp4netns") if policy.connector != "pasta" else None
    if usual is not None and (policy.connector != "auto" or not hostcache.is_set_aside(usual)):
        return "slirp4netns", usual
    other = find_helper("pasta") if policy.connector != "slirp4netns" else None
    if other is not None:
        return "pasta", other
    if usual is not None:
        return "slirp4netns", usual
    name = "pasta" if policy.connector == "pasta" else "slirp4netns"
    package = "passt" if name == "pasta" else name
    raise no_connector(policy, name, f"{name} is not installed", f"Install the package {package}.")


def no_connector(policy: Resolved, missing: str, cause: str, remedy: str) -> SandboxUnavailable:
    return SandboxUnavailable(
        f"could not lease a network: {cause}", mode=policy.mode or "auto", missing=(missing,), remedy=remedy
    )


def open_to_all(path: str) -> bool:
    try:
        return os.stat(path).st_mode & 0o006 == 0o006
    except OSError:
        return False
