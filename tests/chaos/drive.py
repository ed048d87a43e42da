"""A caller of the library in a process of its own: takes orders as JSON lines, answers each with a line.

An order has the options of ``stockade.run``; ``count`` repeats it, and ``threads`` does so in that many at once.
What was raised instead of a result is answered too. ``descriptors`` asks for what this process has open.
"""

from __future__ import annotations

import collections
import json
import os
import resource
import sys
import threading

import stockade

ERROR, run = stockade.StockadeError, stockade.run  # not while there is no room for opening a file


def run_once(order):
    try:
        result = run(order["command"], **order.get("options", {}))
    except ERROR as error:
        return {"raised": type(error).__name__, "message": error.message, "remedy": error.remedy}
    except (MemoryError, RuntimeError, OSError) as error:  # never meant to come out
        return {"raised": type(error).__name__, "message": str(error), "remedy": None}
    names = ("outcome", "exit_code", "signal", "returncode", "reason", "started", "rule", "enforcement")
    answer = {name: getattr(result, name) for name in names}
    answer["stdout"] = result.stdout.decode("utf-8", "replace")
    answer["stderr"] = result.stderr.decode("utf-8", "replace")
    answer["first_seen"] = [each.first_seen for each in result.egress]
    if result.changes is not None:
        answer["captured"] = [change.path for change in result.changes.files or ()]
        result.changes.close()
    return answer


def summary(answer, order):
    """Answers that are as they have to be are counted as one kind."""
    wanted = order.get("expect")
    good = {"outcome": "exited", "exit_code": wanted}
    if wanted is not None and all(answer.get(key) == value for key, value in good.items()):
        return "good"
    return json.dumps(answer)


def run_many(order):
    found = collections.Counter()
    guard = threading.Lock()
    turns = iter(range(order["count"]))

    def work():
        while True:
            with guard:
                if next(turns, None) is None:
                    return
            kind = summary(run_once(order), order)
            with guard:
                found[kind] += 1

    workers = [threading.Thread(target=work) for _ in range(order.get("threads", 1))]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return {"found": found}


def probed(*, whole):
    """What this host is found to offer, and whether that is remembered."""
    from stockade.sandbox import hostcache
    from stockade.sandbox import probe as probing

    probing.forget()
    try:
        host = stockade.probe() if whole else probing.known()
    except (ERROR, OSError) as error:
        return {"raised": type(error).__name__, "message": str(error)}
    found = {each.name: (each.state, each.detail) for each in host.capabilities}
    bwrap = probing.binaries.locate()
    return {
        "found": found,
        "kept": probing._known is not None,
        "stored": hostcache.recall(bwrap) is not None,
        "aside": any(map(hostcache.is_set_aside, filter(None, [probing.binaries.find_helper("slirp4netns")]))),
    }


def carry_out(order):
    if "descriptors" in order:
        links = {}
        for number in os.listdir("/proc/self/fd"):
            try:
                links[number] = os.readlink(f"/proc/self/fd/{number}")
            except OSError:
                continue
        return {"descriptors": sorted(links.values()), "threads": threading.active_count()}
    if "probe" in order:
        return probed(whole=order["probe"] == "whole")
    if "limit" in order:
        number = getattr(resource, f"RLIMIT_{order['limit']}")
        hard = resource.getrlimit(number)[1]
        resource.setrlimit(number, (order["to"] if order["to"] is not None else hard, hard))
        return {}
    if "open" in order:
        for path in order["open"]:
            os.open(path, os.O_RDONLY)
        return {}
    return run_many(order) if "count" in order else run_once(order)


def main():
    for line in sys.stdin:
        sys.stdout.write(json.dumps(carry_out(json.loads(line))) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
