"""What chaos around the edge is made with: runs in a world, and hands on the processes below this one."""

from __future__ import annotations

import gc
import json
import os
import sys
import threading
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from collections.abc import Callable
    from typing import Any

    import psutil

PORT = 9443
"""Of the server: see tests/netns/edgeserver.py."""
PYTHON = os.environ.get("STOCKADE_EDGE_PYTHON", "")
SECRET = "tok-5d21c07f9e-of-the-chaos"
HOST = f"api.example:{PORT}"
URL = f"https://{HOST}"
CURL = "curl --silent --show-error --output /dev/null --max-time 20"
LOUD = "curl --silent --show-error --max-time 20"
PATIENCE = 15.0


def until(look: Callable[[], Any]) -> Any:
    """What ``look`` finds, once it is true, or when patience ends."""
    limit = time.monotonic() + PATIENCE
    while not (found := look()) and time.monotonic() < limit:
        time.sleep(0.004)
    return found


def proxies(pid: int) -> list[psutil.Process]:
    """Proxies of the edge below a process, and not below one that it started to call the library itself."""
    import psutil

    found = []
    for each in psutil.Process(pid).children(recursive=True):
        try:
            alive = each.status() != psutil.STATUS_ZOMBIE and "edge/child.py" in " ".join(each.cmdline())
        except psutil.Error:
            continue
        if alive:
            found.append(each)
    return found


def find_proxy(pid: int) -> psutil.Process | None:
    found = proxies(pid)
    return max(found, key=lambda each: each.create_time()) if found else None


def alone(identity: str) -> None:
    """A caller of its own, whose request is never answered."""
    import stockade

    policy = policy_of(identity, [entry("API_TOKEN")])
    stockade.run(f"{CURL} {URL}/v1/hang", policy=policy, cwd=sys.argv[4], timeout=60)


def entry(variable: str) -> dict[str, Any]:
    return {"host": HOST, "headers": {"Authorization": {"from": f"env:{variable}", "format": "Bearer {}"}}}


def policy_of(identity: str, entries: list[dict[str, Any]], **sections: Any) -> object:
    import rig

    from stockade.policies.model import parse_tree

    network = {"egress": "allow", "edge": entries}
    user = {"user": rig.USERS.get(identity, "auto")}
    return parse_tree({"extends": "workspace-write", "network": network, "process": user, **sections}, "a test")


class World:
    """Runs in a world with a server behind TLS, and what is done to their proxy meanwhile."""

    def __init__(self, world: Any, python: str) -> None:
        from edgeserver import Server
        from rig import GOOD

        if python:
            os.environ["STOCKADE_EDGE_PYTHON"] = python
        os.environ["API_TOKEN"] = SECRET
        self.world, self.struck = world, False
        world.zone["api.example"] = [f"A {GOOD}"]
        self.server = Server(world.top, ["api.example"])
        os.environ["SSL_CERT_FILE"] = self.server.authority

    def run(self, command: str, variable: str = "API_TOKEN", waits: float = 0.0, **sections: Any) -> dict[str, Any]:
        """One run as plain data; what was raised is its outcome. ``waits``: seconds for a session to be opened."""
        import stockade
        from stockade.netns.edge import link

        link.OPEN_SECONDS = waits or 15.0
        self.server.got.clear()
        policy = policy_of(self.world.identity, [entry(variable)], **sections)
        try:
            result = stockade.run(command, policy=policy, cwd=self.world.place, timeout=60)
        except (stockade.StockadeError, OSError) as error:
            text = getattr(error, "message", str(error)).lower()
            return {"outcome": type(error).__name__, "reason": text, "code": None, "document": text, "got": []}
        document = result.to_json()
        names = ("outcome", "reason", "rule", "started", "stdout", "stderr", "requests", "notes")
        found = {name: document[name] for name in names}
        return {**found, "code": document["exit_code"], "got": self.got(), "document": json.dumps(document)}

    def got(self) -> list[str]:
        return [dict(map(tuple, headers)).get("authorization", "") for _method, _path, headers in self.server.got]

    def strike(self, number: signal.Signals, lasts: float | None) -> None:
        import signal

        import psutil

        victim = find_proxy(os.getpid())
        if victim is None:
            return
        try:
            victim.send_signal(number)
            self.struck = True
            if number == signal.SIGSTOP and lasts is not None:
                time.sleep(lasts)
                victim.send_signal(signal.SIGCONT)
        except psutil.Error:
            pass

    def later(self, delay: float, number: signal.Signals, *, lasts: float) -> threading.Thread:
        def work() -> None:
            time.sleep(delay)
            self.strike(number, lasts)

        return self._beside(work)

    def when_asked(
        self, number: signal.Signals, *, lasts: float | None = None, then: Callable[[], None] | None = None
    ) -> threading.Thread:
        """Once the server has a request."""
        self.server.got.clear()

        def work() -> None:
            until(lambda: self.server.got)
            self.strike(number, lasts)
            if then is not None:
                then()

        return self._beside(work)

    def _beside(self, work: Callable[[], None]) -> threading.Thread:
        self.struck = False
        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        return thread

    def run_with(self, number: int) -> str:
        """A run with a secret of its own: what is wrong with it."""
        variable, secret = f"TOKEN_{number}", f"secret-{number:04d}-{'x' * 12}{number:04d}"
        os.environ[variable] = secret
        import stockade

        policy = policy_of(self.world.identity, [entry(variable)])
        command = f"{LOUD} '{URL}/v1/echo?{number}'; env"
        result = stockade.run(command, policy=policy, cwd=self.world.place, timeout=60)
        document = json.dumps(result.to_json())
        mine = [headers for _method, path, headers in list(self.server.got) if path == f"/v1/echo?{number}"]
        sent = [text for headers in mine for name, text in headers if name == "authorization"]
        self.server.got = [each for each in self.server.got if each[1] != f"/v1/echo?{number}"]
        shown = [request["path"] for request in result.to_json()["requests"]]
        good = (result.exit_code, sent, shown) == (0, [f"Bearer {secret}"], [f"/v1/echo?{number}"])
        return "" if good and "secret-" not in document else f"{number}: {sent} {document}"

    def run_together(self, count: int) -> list[str]:
        found: list[str] = []
        workers = [
            threading.Thread(target=lambda each=each: found.append(self.run_with(each))) for each in range(count)
        ]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        return [each for each in found if each] + ["a run raised"] * (count - len(found))

    def rest(self) -> None:
        """Until the threads of servers and services are over."""
        until(lambda: not [each for each in threading.enumerate() if "service" in each.name])
        gc.collect()

    def kept(self) -> dict[str, int]:
        """What this process and its proxy hold."""
        import psutil

        from stockade.netns.edge.link import EdgeSession

        proxy = find_proxy(os.getpid())
        assert proxy is not None
        held = proxy.memory_info().rss
        until(lambda: not list(self.own_sockets()))
        return {
            "descriptors": len(os.listdir("/proc/self/fd")),
            "threads": threading.active_count(),
            "sessions": sum(isinstance(each, EdgeSession) for each in gc.get_objects()),
            "descriptors of the proxy": proxy.num_fds() if os.geteuid() == 0 else 0,  # it can't be looked into
            "memory": psutil.Process().memory_info().rss,
            "memory of the proxy": held,
        }

    def own_sockets(self) -> list[str]:
        """Threads of the server that still have a connection."""
        return [each.name for each in threading.enumerate() if "_serve" in each.name]

    def left(self) -> list[str]:
        """What remains once this process has let go of everything."""
        import psutil

        self.end()
        me = psutil.Process()
        until(lambda: not [each for each in me.children(recursive=True) if each.status() != psutil.STATUS_ZOMBIE])
        found = [" ".join(each.cmdline()) for each in me.children(recursive=True) if each.status() != "zombie"]
        found += [each.name for each in threading.enumerate() if each.name == "stockade-edge"]
        return found + [f"file {name}" for name in os.listdir(self.world.place)]

    def end(self) -> None:
        from stockade.sandbox import keeperlink
        from stockade.sandbox.edge import proxy

        proxy.dismiss()
        keeperlink.end_keeper()
