"""The proxy of this process: one child for all runs, started by the keeper when the first one needs it.

A child that died is replaced; a copy of this process (a fork) starts its own. Which interpreter it runs under is
the host's to say (``STOCKADE_EDGE_PYTHON``), never a policy's.
"""

from __future__ import annotations

import os
import socket
import threading

from stockade.netns.edge.interpreter import REMEDY, child_argv, find_interpreter
from stockade.policies.capability import Capability
from stockade.policies.errors import SandboxUnavailable, StockadeError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from stockade.netns.edge.link import EdgeProxy
    from stockade.sandbox.lessor import KeptPart

LINK_FD = 0

_guard = threading.Lock()
_proxy: EdgeProxy | None = None
_part: KeptPart | None = None


def capability() -> Capability:
    """Whether there is an interpreter with mitmproxy. Looked at, not tried: ``tried`` does that."""
    python, cause = find_interpreter(os.environ)
    if not python:
        return Capability("edge", "missing", cause, REMEDY)
    return Capability("edge", "ok", f"mitmproxy under {python}")


def tried() -> Capability:
    """The same, tried: a child is started and makes an authority."""
    from stockade.sandbox.edge.trust import host_bundle

    found = capability()
    if found.state != "ok":
        return found
    idle = _proxy is None
    rule = {"host": "host.example", "scheme": "https", "methods": [], "paths": [], "headers": []}
    try:
        shared().open([rule], (), mask_queries=False, trust=host_bundle(os.environ)).close()
    except (StockadeError, OSError) as error:
        said = error.message if isinstance(error, StockadeError) else (error.strerror or str(error)).lower()
        return Capability("edge", "disabled", f"the trial failed: {said}", REMEDY)
    finally:
        if idle:
            end()
    return found.replace(detail=f"{found.detail} answers")


def forget_copy() -> None:
    """In a copy of this process: its descriptors would keep the proxy of the other one alive, and in reach."""
    global _guard, _proxy, _part
    proxy, part = _proxy, _part
    _guard, _proxy, _part = threading.Lock(), None, None
    if proxy is not None:
        proxy.forget()
    if part is not None:
        part.close()


os.register_at_fork(after_in_child=forget_copy)


def shared() -> EdgeProxy:
    """The proxy of this process. Raises SandboxUnavailable where it can't be had."""
    global _proxy, _part
    with _guard:
        if _proxy is None or not _proxy.alive():
            dismiss()
            _proxy, _part = start()
        return _proxy


def start() -> tuple[EdgeProxy, KeptPart]:
    from stockade.netns.edge.link import EdgeProxy
    from stockade.sandbox.lessor import KeeperSpawner

    python, cause = find_interpreter(os.environ)
    if not python:
        raise SandboxUnavailable(
            f"could not use network.edge: {cause}", mode="auto", missing=("edge",), remedy=REMEDY
        )
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        part = KeeperSpawner(None).program(
            child_argv(python), [(theirs.fileno(), LINK_FD)], as_caller=True, leash=None
        )
    except BaseException:
        ours.close()
        raise
    finally:
        theirs.close()
    return EdgeProxy(ours), part


def end() -> None:
    """Let go of the proxy there is. The next run that needs one starts another."""
    with _guard:
        dismiss()


def dismiss() -> None:
    """With the lock held. The child ends when the link is closed."""
    global _proxy, _part
    proxy, part = _proxy, _part
    _proxy = _part = None
    if proxy is not None:
        proxy.close()
    if part is not None:
        part.close()
