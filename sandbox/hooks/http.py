"""HTTP handlers: the event is POSTed, the answer is read as a command's stdout would be.

HTTPS only, to hosts that the policy lists, at public addresses; no redirect is followed, no proxy of the environment
used, no header filled from a variable that the handler does not name. Needs the extra ``hooks``.
"""

from __future__ import annotations

from stockade.policies.errors import StockadeError
from stockade.policies.hosts import TOP_PORT, matches_name, parse_rule
from stockade.policies.record import Record
from stockade.policies.text import quoted
from stockade.sandbox.hooks.httpcourse import HttpFailed, HttpRefused

TYPE_CHECKING = False
if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    from stockade.policies.resolved import Resolved
    from stockade.sandbox.hooks.httpcourse import Course
    from stockade.sandbox.hooks.httpnet import Resolve, Screen
    from stockade.sandbox.hooks.model import HookSpec

LARGEST_ANSWER = 1 << 20
OURS = frozenset(
    {"host", "content-length", "transfer-encoding", "connection", "upgrade", "te", "trailer", "expect"}
)
"""Headers that a handler may not set."""
NEEDED = "pip install 'stockade[hooks]'"


class Ways:
    """How handlers reach the network. The defaults are the only ones outside of tests.

    ``resolve(host, port)`` gives addresses, ``screen(addresses)`` those that may be reached and the others, ``trust``
    makes the TLS context.
    """

    def __init__(
        self,
        resolve: Resolve | None = None,
        screen: Screen | None = None,
        trust: Callable[[], ssl.SSLContext] | None = None,
    ) -> None:
        import ssl

        from stockade.sandbox.hooks import httpnet

        self.resolve = resolve or httpnet.look_up
        self.screen = screen or public_only
        self.trust = trust or ssl.create_default_context


class Answer(Record):
    """A successful answer: the body of a 2xx."""

    status: int
    body: bytes


class Target(Record):
    """Where a handler's URL leads."""

    url: str
    host: str
    """As in the certificate, A-labels."""
    port: int


def post(
    spec: HookSpec,
    payload: bytes,
    *,
    policy: Resolved,
    environ: Mapping[str, str],
    course: Course,
    ways: Ways | None = None,
) -> Answer:
    """POST an event to a handler of the form ``http``. ``course`` holds the time that it has.

    Raises HttpRefused for what may not be reached (nothing was sent), HttpFailed when no 2xx came back in time.
    """
    httpx, httpcore = library("httpx"), library("httpcore")
    from stockade.sandbox.hooks.httpedge import complete
    from stockade.sandbox.hooks.httpnet import Checked, CheckedNetwork

    target = target_of(spec.url)
    permit(target, policy)
    whole = complete(target, policy, filled(spec.headers, spec.header_variables, environ), environ)
    headers = list(whole.headers)
    chosen = ways or Ways()
    network = CheckedNetwork(course, chosen.resolve, chosen.screen)
    ours = [("User-Agent", "stockade"), ("Accept-Encoding", "identity"), ("Content-Type", "application/json")]
    given = {name.lower() for name, _value in headers}
    sent = [each for each in ours if each[0].lower() not in given] + headers
    with httpx.Client(
        transport=Checked(network, chosen.trust()), trust_env=False, follow_redirects=False, headers={}
    ) as client:
        try:
            with client.stream("POST", target.url, content=payload, headers=sent) as response:
                answer = read(response)
                return answer.replace(body=whole.masked(answer.body))
        except (httpx.HTTPError, httpcore.ProtocolError, httpcore.NetworkError) as error:
            course.left()  # being stopped looks like a lost connection
            raise HttpFailed(f"{target.host!r}: {str(error).lower() or type(error).__name__}") from None


def library(name: str) -> Any:
    """The HTTP client. Raises StockadeError where it is not installed."""
    try:
        return __import__(name)
    except ImportError:
        raise StockadeError(f"could not use an HTTP handler: {name} is not installed", remedy=NEEDED) from None


def target_of(url: str) -> Target:
    """The target of a URL. Raises HttpRefused for one that is no plain ``https://`` URL."""

    httpx = library("httpx")
    try:
        parsed = httpx.URL(url)
        host, port = parsed.raw_host.decode("ascii"), parsed.port or 443
    except (httpx.InvalidURL, TypeError, ValueError) as error:
        raise HttpRefused(f"could not use the handler's URL: {str(error).lower()}") from None
    # The rest of it may hold secrets.
    shown = quoted(f"{parsed.scheme}://{parsed.host}")
    if parsed.scheme != "https":
        raise HttpRefused(f"could not use the URL {shown}: only https:// is allowed")
    if parsed.userinfo:
        raise HttpRefused(f"could not use the URL {shown}: it has credentials in it", remedy="Use a header.")
    if not host or not 0 < port <= TOP_PORT:
        raise HttpRefused(f"could not use the URL {shown}: it names no {'port' if host else 'host'} that there is")
    return Target(str(parsed.copy_with(fragment=None)), host, port)


def permit(target: Target, policy: Resolved) -> None:
    """Raises HttpRefused unless the policy lets this host and port be reached. Decides by name; addresses come later."""

    from stockade.sandbox.hooks.httpedge import entries, means

    if policy.egress == "open" or (policy.egress == "allow" and listed(target, policy.allow)):
        return
    if any(means(rule, target) for rule in entries(policy)):
        return
    entry = target.host if target.port == 443 else f"{target.host}:{target.port}"
    raise HttpRefused(
        f"could not reach {entry!r}: it is not on the allowlist (network.egress is {policy.egress})",
        remedy=f"Allow it with --allow {entry}, or in the policy.",
    )


def listed(target: Target, allow: Sequence[str]) -> bool:
    rules = [parse_rule(each) for each in allow]
    return any(
        rule.protocol == "tcp" and rule.low <= target.port <= rule.high and names(rule, target.host)
        for rule in rules
    )


def names(rule: Any, host: str) -> bool:
    if rule.network is None:
        return matches_name(rule, host)
    import ipaddress

    try:
        return ipaddress.ip_address(host) in ipaddress.ip_network(rule.network)
    except ValueError:
        return False


def public_only(addresses: Any) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Public addresses, and the others. What a policy says of private ones is for confined programs, whose network is
    one of their own; this request leaves from the host's."""
    from stockade.netns.names import screen

    return screen(addresses, (), private=False)


def filled(
    headers: Sequence[tuple[str, str]], variables: Sequence[str], environ: Mapping[str, str]
) -> list[tuple[str, str]]:
    """Headers with ``$NAME`` and ``${NAME}`` filled in where ``variables`` names them, empty otherwise."""
    import re

    def value(found: re.Match[str]) -> str:
        name = found[1] or found[2]
        return environ.get(name, "") if name in variables else ""

    made = []
    for name, text in headers:
        full = re.sub(r"\$(?:([A-Za-z_][A-Za-z0-9_]*)|\{([A-Za-z_][A-Za-z0-9_]*)\})", value, text).strip(" \t")
        if not re.fullmatch(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+", name) or name.lower() in OURS:
            raise HttpRefused(f"could not send the header {quoted(name)}: a handler may not set it")
        if not all(" " <= letter <= "~" or letter == "\t" for letter in full):
            # Its value may be a secret: it is not quoted.
            raise HttpRefused(
                f"could not send the header {quoted(name)}: its value has control or non-ASCII letters"
            )
        made.append((name, full))
    return made


def read(response: Any) -> Answer:
    """The body of an answer. Raises HttpFailed for what is no 2xx, and for more than fits."""

    status = response.status_code
    if 300 <= status < 400:
        raise HttpFailed(f"status {status}: redirects are not followed")
    if not 200 <= status < 300:
        raise HttpFailed(f"status {status}")
    coding = response.headers.get("content-encoding", "identity").strip().lower()
    if coding not in ("", "identity"):
        raise HttpFailed(f"the answer is encoded as {quoted(coding)}, which was not asked for")
    body = bytearray()
    for chunk in response.iter_raw():
        body += chunk
        if len(body) > LARGEST_ANSWER:
            raise HttpFailed(f"the answer is longer than {LARGEST_ANSWER >> 10} KiB")
    return Answer(status, bytes(body))
