"""What this host can really enforce, found by trying: a throwaway confined run that must show both sides.

A permitted write has to work and a forbidden one has to be refused, in the same run, and the host is looked
at afterwards. Nothing is concluded from versions or from messages.
"""

from __future__ import annotations

import os

from stockade.policies.capability import REQUIRED, WANTED, Capability
from stockade.policies.errors import SandboxUnavailable, StockadeError
from stockade.sandbox import bwrap as binaries
from stockade.sandbox import hostcache
from stockade.sandbox.host import Host

TYPE_CHECKING = False
if TYPE_CHECKING:
    from stockade.sandbox.private import Private

BASIC = (*REQUIRED, *WANTED, "seccomp", "limits", "drop-root")
"""What every confined run uses; a host with all of these is remembered."""

NO_OVERLAY = Capability("overlay", "unknown", "not tried: nobody asked for an overlay workspace")
"""Overlay workspaces may take another binary and take a trial of their own: only those who ask for one pay for it."""

TRIAL = "stockade-probe-"
"""Begins the names of directories for trials."""

_known: Host | None = None
_overlaid: Host | None = None


def known(*, leased: bool = False, overlaid: bool = False, edged: bool = False) -> Host:
    """The host, as far as a run needs it: remembered where it was found able, else probed now.

    ``leased`` adds the tools of leased networks, ``edged`` the proxy of the edge; ``overlaid`` is for an overlay
    workspace, and may name another bubblewrap. Raises nothing: what is missing is in the result.
    """
    host = for_overlays() if overlaid else usual()
    host = with_network(host) if leased else host
    return with_edge(host) if edged else host


def usual() -> Host:
    global _known
    host = _known
    if host is None:
        host = recalled() or basic_probe()
        _known = host if able(host) else None
    return host


def for_overlays() -> Host:
    global _overlaid
    host = _overlaid
    if host is None:
        from stockade.sandbox import overlaytrial

        host = overlaytrial.known(usual())
        _overlaid = host if able(host) and host.has("overlay") else None
    return host


def recalled() -> Host | None:
    try:
        return hostcache.recall(binaries.locate())
    except (SandboxUnavailable, OSError):
        return None


def probe() -> Host:
    """Try everything now, and remember nothing but success. For ``stockade doctor``."""
    forget()
    from stockade.sandbox import cgrouptrial, orphans, overlaytrial

    orphans.end_abandoned()
    basic = basic_probe()
    overlay = overlaytrial.find(basic).by_name()["overlay"]
    host = with_edge(with_network(overlaytrial.with_capability(basic, overlay), tried=True), tried=True)
    return host.replace(capabilities=(*host.capabilities, cgrouptrial.capability(tried=True)))


def forget() -> None:
    """A run could not be set up: what is remembered of this host no longer holds."""
    global _known, _overlaid
    _known = _overlaid = None
    hostcache.forget()


def able(host: Host) -> bool:
    return all(host.has(name) for name in BASIC)


def with_network(host: Host, *, tried: bool = False) -> Host:
    """Add what leased networks need. ``tried``: by leasing one and reaching through it, for ``probe``."""
    from stockade.netns import features

    tools = features.tool_capabilities(binaries.find_helper)
    missing = ", ".join(features.lacking(tools))
    if tried and able(host) and not missing:
        from stockade.sandbox import leasetrial

        return host.replace(capabilities=(*host.capabilities, *leasetrial.try_connectors(tools)))
    state, detail = ("missing", f"it needs {missing}") if missing else ("ok", "its tools are there")
    return host.replace(capabilities=(*host.capabilities, *tools, Capability("leased-network", state, detail)))


def with_edge(host: Host, *, tried: bool = False) -> Host:
    """Add the proxy of the edge. ``tried``: by having it open a session, for ``probe``."""
    from stockade.sandbox.edge import proxy

    found = proxy.tried() if tried else proxy.capability()
    return host.replace(capabilities=(*host.capabilities, found))


def basic_probe() -> Host:
    """Find the binary and try it. Only a wholly positive finding is remembered."""
    host = tried()
    if able(host):
        hostcache.remember(host)
        return host
    from stockade.sandbox import userns

    return unfinished(userns.too_many_processes()) if userns.short_of_processes() else host


def unfinished(cause: Capability) -> Host:
    """Nothing can be said of this host at this moment."""
    rest = [Capability(name, "unknown", "not tried", cause.remedy) for name in BASIC if name != cause.name]
    return Host((cause, *rest, NO_OVERLAY), None)


def tried(path: str | None = None) -> Host:
    """Try the binary at ``path``, or the usual one."""
    try:
        binary = binaries.inspect(binaries.locate(path))
    except SandboxUnavailable as error:
        from stockade.sandbox.shortage import cause_in, untried

        state = "too old" if "too old" in error.message else "missing"
        cause = cause_in(error.message)
        broken = untried("bwrap", cause) if cause else Capability("bwrap", state, error.message, error.remedy)
        rest = [
            Capability(name, "unknown", "not tried: there is no usable bubblewrap", error.remedy)
            for name in BASIC[1:]
        ]
        return Host((broken, *rest, NO_OVERLAY), None)
    from stockade.sandbox import trial

    try:
        capabilities = trial.try_everything(binary)
    except StockadeError as error:
        failed = Capability("user-namespaces", "unknown", error.message, error.remedy)
        rest = [Capability(name, "unknown", "not tried", "") for name in BASIC[2:]]
        return Host((Capability("bwrap", "ok", binary.path), failed, *rest, NO_OVERLAY), binary)
    return Host((Capability("bwrap", "ok", binary.path), *capabilities, NO_OVERLAY), binary)


def temporary() -> Private:
    """A private directory for a trial, outside of every place the box replaces by its own if possible.

    Whoever asks holds it while it is needed: what trials left that were killed goes now. Raises OSError.
    """
    import tempfile

    from stockade.sandbox import private

    parent = os.path.realpath(tempfile.gettempdir())
    private.sweep(parent, TRIAL)
    return private.make(parent, TRIAL)
