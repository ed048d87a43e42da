"""The edge of one run: values read, a session of the proxy opened, the box equipped.

edge = begin(policy)
lease.edge = edge.session         the lease closes it
plan = edge.equip(plan)
"""

from __future__ import annotations

import os

from stockade.policies.edge import read_edge
from stockade.policies.record import Record
from stockade.sandbox.edge import proxy, values
from stockade.sandbox.edge.trust import host_bundle

TYPE_CHECKING = False
if TYPE_CHECKING:
    from stockade.netns.edge.link import EdgeSession
    from stockade.policies.resolved import Resolved
    from stockade.sandbox.edge.values import Values
    from stockade.sandbox.plan import Plan


class Edge(Record):
    """What a run has of the edge."""

    values: Values
    bundle: str
    session: EdgeSession

    def equip(self, plan: Plan) -> Plan:
        """The plan of a box that trusts this run's authority. Raises RequestError where a secret would be in it."""
        from stockade.sandbox.edge.box import equipped

        return equipped(plan, self.values, self.bundle, self.session.ca)


def begin(policy: Resolved) -> Edge:
    """Read the values and open a session, which the lease closes. Raises StockadeError; nothing was run then."""
    filled = values.fill(map(read_edge, policy.edge), os.environ)
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
    session = proxy.shared().open(rules, filled.secrets, mask_queries=policy.mask_queries, trust=bundle)
    return Edge(filled, bundle, session)
