"""What the edge costs: requests that are completed by its proxy, against the same with their name checked alone.

``rows`` measures in a process and a network namespace of its own, with a server of its own: nothing leaves this
machine. By itself this prints the table; ``bench.py`` takes the rows into its own.
"""

from __future__ import annotations

import http.server
import os
import signal
import ssl
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).resolve()
sys.path.insert(0, str(HERE.parent))
import bench  # noqa: E402
import bench_net  # noqa: E402

import stockade  # noqa: E402
from stockade.policies.model import parse_tree  # noqa: E402
from stockade.sandbox import keeperlink, leaseworld, probe  # noqa: E402
from stockade.sandbox.edge import proxy  # noqa: E402
from stockade.sandbox.leasetrial import ALLOWED  # noqa: E402

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

PORT = 8443
PLACE = f"{bench_net.NAME}:{PORT}"
CONNECTIONS = 20
CLIENT = """
import http.client, ssl, sys, time
host, port, connections = sys.argv[1], *map(int, sys.argv[2:4])
context = ssl.create_default_context()
if sys.argv[4] == "unknown":
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
def once(connection):
    began = time.perf_counter()
    connection.request("GET", "/")
    connection.getresponse().read()
    return (time.perf_counter() - began) * 1000
fresh, kept = [], []
for _ in range(connections):
    connection = http.client.HTTPSConnection(host, port, context=context, timeout=20)
    fresh.append(once(connection))
    kept.append(once(connection))
    connection.close()
middle = lambda values: sorted(values)[len(values) // 2]
print(fresh[0], middle(fresh[1:]), middle(kept))
"""
FIGURES = ("first request", "request on a connection of its own", "request on a kept connection")


class Page(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # else head and body, written one after the other, are 40 ms apart

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"ok")

    def log_message(self, *_args: object) -> None: ...


@contextmanager
def server(work: str) -> Iterator[str]:
    """A server behind TLS, in a process of its own; the path of what it is to be trusted by."""
    place = os.path.join(work, "server.pem")
    subprocess.run(
        [
            "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
            "-subj", f"/CN={bench_net.NAME}", "-days", "2", "-addext", f"subjectAltName=DNS:{bench_net.NAME}",
            "-keyout", f"{place}.key", "-out", place,
        ],
        check=True, capture_output=True,
    )  # fmt: skip
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(place, f"{place}.key")
    serving = http.server.ThreadingHTTPServer((ALLOWED, PORT), Page)
    serving.socket = context.wrap_socket(serving.socket, server_side=True)
    pid = os.fork()
    if pid == 0:
        try:
            serving.serve_forever()
        finally:
            os._exit(0)
    serving.server_close()
    try:
        yield place
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def measured(network: dict[str, object], known: str, cwd: str) -> tuple[float, ...]:
    policy = parse_tree({"network": {"egress": "allow", **network}}, "the benchmark")
    command = [bench_net.PYTHON, "-c", CLIENT, bench_net.NAME, str(PORT), str(CONNECTIONS), known]
    result = stockade.run(command, cwd=cwd, policy=policy)
    if (result.outcome, result.exit_code) != ("exited", 0):
        raise SystemExit(f"could not measure the edge: {result.reason}, {result.stderr.decode()}")
    return tuple(map(float, result.stdout.decode().split()))


def requests(rounds: int, cwd: str) -> list[dict]:
    entry = {"host": PLACE, "headers": {"Authorization": {"from": "env:BENCH_TOKEN", "format": "Bearer {}"}}}
    ways = {
        "with the name check": ({"allow": [PLACE], "check": "name"}, "unknown"),
        "completed by the edge": ({"edge": [entry]}, "trusted"),
    }
    taken: dict[str, list[tuple[float, ...]]] = {way: [] for way in ways}
    for number in range(rounds + 1):
        for way, (network, known) in ways.items():
            found = measured(network, known, cwd)
            if number:  # the first round has the proxy started
                taken[way].append(found)
    base = "with the name check"
    found = []
    for way, all_of in taken.items():
        for index, name in enumerate(FIGURES):
            values, under = [each[index] for each in all_of], [each[index] for each in taken[base]]
            found.append(
                bench_net.row(
                    f"{name}, {way}", values, base if way != base else "", under if way != base else None, 0.0
                )
            )
    return found


def starts(rounds: int, cwd: str) -> list[dict]:
    """Whole runs: what a session of the proxy and the trust of the box add."""
    allow = parse_tree({"network": {"egress": "allow", "allow": [PLACE]}}, "the benchmark")
    entry = {"host": PLACE, "headers": {"Authorization": "env:BENCH_TOKEN"}}
    edge = parse_tree({"network": {"egress": "allow", "edge": [entry]}}, "the benchmark")
    acts = {
        "API, allow": bench.confined(["true"], cwd=cwd, policy=allow),
        "API, allow, with an edge entry": bench.confined(["true"], cwd=cwd, policy=edge),
    }
    taken = bench.interleaved(acts, rounds)
    first, second = taken
    return [
        bench_net.row(first, taken[first], "", None, 0.0),
        bench_net.row(second, taken[second], first, taken[first], 0.0),
    ]


def measure(rounds: int) -> list[dict]:
    """In this process, which is in a world of its own already."""
    os.environ["PATH"] = "/usr/local/bin:/usr/bin:/bin"
    os.environ["BENCH_TOKEN"] = "a-token-of-the-benchmark"
    if (found := proxy.capability()).state != "ok" or not probe.known(leased=True).has("leased-network"):
        raise SystemExit(f"could not measure the edge: {found.detail}\n{found.remedy or 'Run `stockade doctor`.'}")
    with tempfile.TemporaryDirectory(prefix="stockade-bench-", dir="/var/tmp") as work:
        os.chmod(work, 0o755)
        os.chdir(work)
        try:
            with server(work) as trust, bench_net.known_name():
                os.environ["SSL_CERT_FILE"] = trust
                return requests(max(2, rounds // 4), work) + starts(rounds, work)
        finally:
            proxy.end()
            keeperlink.end_keeper()
            os.chdir("/")


def rows(rounds: int) -> list[dict]:
    """All rows, in the shape of ``bench.py``."""
    return bench.rows_inside(str(HERE), rounds)


if __name__ == "__main__":
    bench.main_inside(__doc__, str(HERE), leaseworld.enter_world, measure)
