"""What a leased network costs: starts with and without one, connections and throughput through it.

``rows`` measures in a process and a network namespace of its own, with servers of its own: nothing leaves this
machine. By itself this prints the table; ``bench.py`` takes the rows into its own.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).resolve()
sys.path.insert(0, str(HERE.parent))
import bench  # noqa: E402

import stockade  # noqa: E402
from stockade.netns.lease import EXIT_FD, READY_FD, slirp_argv  # noqa: E402
from stockade.netns.upstream import HostResolver, Lookup  # noqa: E402
from stockade.policies.model import parse_tree  # noqa: E402
from stockade.sandbox import keeperlink, leaseworld, lessor, probe  # noqa: E402
from stockade.sandbox.leasetrial import ALLOWED  # noqa: E402
from stockade.sandbox.order import make_order  # noqa: E402
from stockade.sandbox.survey import identify  # noqa: E402

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PORT = 8080
HOST = f"{ALLOWED}:{PORT}"
NAME = "server.example"
ALONE = "slirp4netns"
PYTHON = shutil.which("python3", path="/usr/local/bin:/usr/bin:/bin") or sys.executable
SIZE = 256 << 20
"""Bytes of one transfer."""
CONNECTIONS = 200
CLIENT = """
import socket, sys, time
host, port, connections, size = sys.argv[1], *map(int, sys.argv[2:])
address = socket.gethostbyname(host)
head = "GET /%d HTTP/1.1\\r\\nHost: " + host + "\\r\\n\\r\\n"
connected, answered = [], []
for _ in range(connections):
    began = time.perf_counter()
    with socket.create_connection((address, port)) as server:
        connected.append(time.perf_counter() - began)
        server.sendall((head % 0).encode())
        server.recv(1)
        answered.append(time.perf_counter() - began)
began = time.perf_counter()
with socket.create_connection((address, port)) as server:
    server.sendall((head % size).encode())
    buffer = bytearray(1 << 20)
    while server.recv_into(buffer):
        pass
taken = time.perf_counter() - began
print(*(sorted(each)[len(each) // 2] * 1000 for each in (connected, answered)), taken * 1000)
"""


# --- the world outside the leases ---------------------------------------------------------------------------------


def serve(listening: socket.socket) -> None:
    """Sends as many bytes as the path asks for, then closes."""
    block = bytes(1 << 20)
    while True:
        connection, _peer = listening.accept()
        with connection:
            left = int(connection.recv(4096).split(b" ")[1][1:])
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % left)
            while left > 0:
                left -= connection.send(block[: min(left, len(block))])


@contextmanager
def server() -> Iterator[None]:
    """In a process of its own, so that it shares no interpreter lock with what is measured."""
    listening = socket.create_server((ALLOWED, PORT), backlog=256)
    pid = os.fork()
    if pid == 0:
        try:
            serve(listening)
        finally:
            os._exit(0)
    listening.close()
    try:
        yield
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


@contextmanager
def plain_slirp() -> Iterator[list[str]]:
    """slirp4netns alone, with the flags of a lease and no rules; the command that enters its namespace."""
    holder = subprocess.Popen(
        ["unshare", "--user", "--map-root-user", "--net", "--", "sh", "-c", "echo; exec sleep 600"],
        stdout=subprocess.PIPE,
    )
    ready, ready_write = os.pipe()
    exit_read, exit_write = os.pipe()
    try:
        assert holder.stdout is not None
        holder.stdout.readline()
        # dup2 makes the copies that the child is to have; the numbers are those of the product
        os.dup2(ready_write, READY_FD)
        os.dup2(exit_read, EXIT_FD)
        argv = slirp_argv("/usr/bin/slirp4netns", holder.pid)
        slirp = subprocess.Popen(
            argv, pass_fds=(READY_FD, EXIT_FD), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        for fd in (ready_write, exit_read, READY_FD, EXIT_FD):
            os.close(fd)
        if os.read(ready, 1) != b"1":
            raise SystemExit("could not measure slirp4netns: it did not get ready")
        yield ["nsenter", "--user", "--net", "--preserve-credentials", f"--target={holder.pid}", "--"]
        os.close(exit_write)
        slirp.wait()
    finally:
        os.close(ready)
        holder.kill()
        holder.communicate()


# --- what is measured ---------------------------------------------------------------------------------------------


def lease_alone(cwd: str, **options: object) -> Callable[[], None]:
    """Made and ended, with no run in it."""
    order = make_order(["true"], cwd=cwd, options=options)
    credentials = identify(order.policy, cwd).credentials

    def act() -> None:
        with lessor.make_lease(order.policy, credentials) as lease:
            lease.start()
            lease.wait_ready()

    return act


def from_pool(pool: stockade.LeasePool, cwd: str) -> Callable[[], None]:
    return bench.confined(["true"], cwd=cwd, allow=[HOST], leases=pool)


def wait_full(pool: stockade.LeasePool) -> None:
    until = time.monotonic() + 10
    while pool.ready() < pool.size and time.monotonic() < until:
        time.sleep(0.005)


def starts(rounds: int, cwd: str, bwrap: str) -> list[dict]:
    none, command = bench.confined(["true"], cwd=cwd), [str(bench.COMMAND), "run"]
    with stockade.LeasePool(2) as pool:
        acts = {
            "python3 -c pass": bench.spawn([sys.executable, "-c", "pass"], cwd=cwd),
            "bare bwrap": bench.spawn([bwrap, *bench.REFERENCE, "true"], cwd=cwd, env={}),
            "lease alone, allow": lease_alone(cwd, **{"network.egress": "allow", "network.allow": [HOST]}),
            "lease alone, record": lease_alone(cwd, **{"network.egress": "record"}),
            "API, egress none": none,
            "API, allow": bench.confined(["true"], cwd=cwd, allow=[HOST]),
            "API, record": bench.confined(["true"], cwd=cwd, record_egress=True),
            "API, allow, ready lease": from_pool(pool, cwd),
            "CLI, --allow": bench.spawn([*command, "--allow", HOST, "--", "true"], cwd=cwd),
            "CLI, --record-egress": bench.spawn([*command, "--record-egress", "--", "true"], cwd=cwd),
        }
        taken = take_turns(acts, rounds, pool)
    floor = [a + b for a, b in zip(taken["python3 -c pass"], taken["bare bwrap"], strict=True)]
    return [row(name, values, *against(name, taken, floor)) for name, values in taken.items()]


def take_turns(
    acts: dict[str, Callable[[], None]], rounds: int, pool: stockade.LeasePool
) -> dict[str, list[float]]:
    """As ``bench.interleaved``, but the pool is full again before each act: its filling is not what is measured."""
    taken: dict[str, list[float]] = {name: [] for name in acts}
    acts["API, allow, ready lease"]()
    for number in range(rounds + 1):
        for name, act in acts.items():
            wait_full(pool)
            milliseconds = bench.timed(act)
            if number:
                taken[name].append(milliseconds)
    return taken


def against(name: str, taken: dict[str, list[float]], floor: list[float]) -> tuple[str, list[float] | None, float]:
    if name.startswith("CLI"):
        return "python3 -c pass + bare bwrap", floor, 3.0
    if name.startswith("API") and name != "API, egress none":
        return "API, egress none", taken["API, egress none"], 1.5 if "ready" in name else 3.0
    return "", None, 0.0


def row(name: str, values: list[float], base: str, under: list[float] | None, goal: float) -> dict:
    return {
        "what": name,
        "ms": round(bench.median(values), 2),
        "min_ms": round(min(values), 2),
        "against": base,
        "ratio": round(bench.ratio_of_pairs(values, under), 3) if under else None,
        "goal": goal or None,
    }


def transfers(rounds: int, cwd: str) -> list[dict]:
    """The same client in a box with a lease, with its name checked, and, unconfined, behind slirp4netns alone."""

    def client(host: str) -> list[str]:
        return [PYTHON, "-c", CLIENT, host, str(PORT), str(CONNECTIONS), str(SIZE)]

    def leased(host: str, check: str) -> str:
        network = {"egress": "allow", "allow": [f"{host}:{PORT}"], "check": check}
        result = stockade.run(client(host), cwd=cwd, policy=parse_tree({"network": network}, "the benchmark"))
        if (result.outcome, result.exit_code) != ("exited", 0):
            raise SystemExit(f"could not measure transfers: {result.reason}, {result.stderr.decode()}")
        return result.stdout.decode()

    with plain_slirp() as enter, known_name():
        plain = [*enter, *client(ALLOWED)]
        ways: dict[str, Callable[[], str]] = {
            "lease": lambda: leased(ALLOWED, "address"),
            "name check": lambda: leased(NAME, "name"),
            ALONE: lambda: subprocess.check_output(plain, text=True, cwd="/"),
        }
        taken: dict[str, list[tuple[float, ...]]] = {way: [] for way in ways}
        for _ in range(rounds):
            for way, act in ways.items():
                taken[way].append(tuple(map(float, act().split())))
    figures = ("connect", "connect and first byte", f"{SIZE >> 20} MiB from a server")
    return [figure(name, index, way, taken) for way in taken for index, name in enumerate(figures)]


def figure(name: str, index: int, way: str, taken: dict[str, list[tuple[float, ...]]]) -> dict:
    values, under = ([each[index] for each in taken[which]] for which in (way, ALONE))
    if way == ALONE:
        return row(f"{name}, {way}", values, "", None, 0.0)
    return row(f"{name}, {way}", values, "slirp4netns alone", under, 0.0)


@contextmanager
def known_name() -> Iterator[None]:
    """A name that leads to the server, as if this host knew it."""
    real = HostResolver.lookup
    HostResolver.lookup = lambda self, name: Lookup((ALLOWED,)) if name == NAME else real(self, name)
    try:
        yield
    finally:
        HostResolver.lookup = real


def measure(rounds: int) -> list[dict]:
    """In this process, which is in a world of its own already."""
    os.environ["PATH"] = "/usr/local/bin:/usr/bin:/bin"
    host = probe.known(leased=True)
    if host.bwrap is None or not host.has("leased-network"):
        raise SystemExit("could not measure: networks can't be leased here\nRun `stockade doctor`.")
    with tempfile.TemporaryDirectory(prefix="stockade-bench-", dir="/var/tmp") as work:
        os.chmod(work, 0o755)
        os.chdir(work)
        try:
            with server():
                return starts(rounds, work, host.bwrap.path) + transfers(max(2, rounds // 8), work)
        finally:
            keeperlink.end_keeper()
            os.chdir("/")


def rows(rounds: int) -> list[dict]:
    """All rows, in the shape of ``bench.py``."""
    return bench.rows_inside(str(HERE), rounds)


if __name__ == "__main__":
    bench.main_inside(__doc__, str(HERE), leaseworld.enter_world, measure)
