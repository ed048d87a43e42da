"""The edge of one run: values read, a session of the proxy opened, the box equipped.

edge = begin(lease.spec)
lease.edge = edge.session         the lease closes it
plan = edge.equip(plan)
"""

from __future__ import annotations

import os

from stockade.policies.record import Record
from stockade.sandbox.edge import proxy, values
from stockade.sandbox.edge.trust import host_bundle
from stockade.sandbox.mounts import MASK

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from stockade.netns.edge.link import EdgeSession
    from stockade.netns.lease import LeaseSpec
    from stockade.sandbox.edge.values import Values
    from stockade.sandbox.plan import Plan


class Edge(Record):
    """What a run has of the edge."""

    values: Values
    bundle: str
    session: EdgeSession
    identities: tuple[tuple[int, int], ...] = ()
    """Of the files that values were read from."""

    def notes(self, plan: Plan) -> tuple[str, ...]:
        """After the run: a file that took the place of a covered one was not covered, and the kernel lets go of a cover."""
        covered = {mount.dest for mount in plan.mounts if mount.op == MASK}
        return tuple(
            f"{path} was replaced while the run went on: what is there now could be read inside"
            for path, was in zip(self.values.files, self.identities, strict=False)
            if path in covered and identity(path) != was
        )

    def equip(self, plan: Plan) -> Plan:
        """The plan of a box that trusts this run's authority. Raises RequestError where a secret would be in it."""
        from stockade.sandbox.edge.box import equipped

        return equipped(plan, self.values, self.bundle, self.session.ca)


def begin(spec: LeaseSpec, until: float | None = None) -> Edge:
    """Read the values and open a session, which the lease closes. Raises StockadeError; nothing was run then.

    ``until``, a time of ``time.monotonic``, is when the run has to be over.
    """
    filled = values.fill(spec.edge, os.environ, until)
    bundle = host_bundle(os.environ)
    rules = [
        {
            "host": each.rule.host.text,
            "scheme": each.rule.scheme,
            "methods": list(each.rule.methods),
            "paths": list(each.rule.paths),
            "headers": [list(pair) for pair in each.headers],
        }
        for each in filled.entries
    ]
    session = opened(rules, filled.secrets, mask_queries=spec.mask_queries, trust=bundle)
    return Edge(filled, bundle, session, tuple(map(identity, filled.files)))


def opened(rules: list[dict[str, Any]], secrets: Sequence[str], *, mask_queries: bool, trust: str) -> EdgeSession:
    """A session of the proxy; of another one if that which was there turns out to be gone, or hung."""
    from stockade.netns.errors import LeaseFailed

    found = proxy.shared()
    try:
        return found.open(rules, secrets, mask_queries=mask_queries, trust=trust)
    except LeaseFailed:
        if found.alive():
            raise
    return proxy.shared().open(rules, secrets, mask_queries=mask_queries, trust=trust)


def identity(path: str) -> tuple[int, int]:
    """What tells a file from another one of its name."""
    try:
        found = os.stat(path)
    except OSError:
        return 0, 0
    return found.st_dev, found.st_ino
