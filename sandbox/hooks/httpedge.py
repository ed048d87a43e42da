"""What the edge makes of a handler's own request: the same entries as for confined programs, no proxy between.

Decides by ``netns.edge.rules``; the value of a header is read for the one entry that counts.
"""

from __future__ import annotations

from stockade.policies.record import Record
from stockade.sandbox.hooks.httpcourse import HttpRefused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from stockade.policies.edge import EdgeRule
    from stockade.policies.resolved import Resolved
    from stockade.sandbox.hooks.http import Target


class Completion(Record):
    """Headers to send, and the secrets among them."""

    headers: tuple[tuple[str, str], ...]
    secrets: tuple[str, ...] = ()

    def masked(self, data: bytes) -> bytes:
        """``data`` with every secret made unreadable."""
        if not self.secrets:
            return data
        from stockade.netns.edge.mask import Masker

        return Masker(self.secrets).bytes(data)


def entries(policy: Resolved) -> tuple[EdgeRule, ...]:
    """The entries that are in force."""
    if not policy.edge:
        return ()
    from stockade.policies.edge import in_force

    return in_force(policy.edge, policy.egress)


def means(rule: EdgeRule, target: Target) -> bool:
    """Whether an entry is about this host and port."""
    from stockade.policies.hosts import reaches

    return rule.scheme == "https" and reaches(rule.host, target.host, target.port)


def complete(
    target: Target, policy: Resolved, headers: Sequence[tuple[str, str]], environ: Mapping[str, str]
) -> Completion:
    """The handler's headers with those of the entry that means its request. Raises HttpRefused if none does, though
    some are about its host; RequestError for a value that can't be read."""
    rules = entries(policy)
    if not any(means(rule, target) for rule in rules):
        return Completion(tuple(headers))
    from stockade.netns.edge.rules import Refused, apply_headers, judge_request

    _scheme, _, rest = target.url.partition("://")
    path = f"/{rest.partition('/')[2]}"
    judged = judge_request(rules, target.host, target.port, "https", "POST", path)
    if isinstance(judged, Refused):
        raise HttpRefused(
            f"could not reach {target.host!r}: {judged.reason}", remedy="See network.edge of the policy."
        )
    from stockade.sandbox.edge.values import fill

    values = fill([rules[judged.index]], environ)
    return Completion(tuple(apply_headers(headers, values.entries[0].headers)), values.secrets)
