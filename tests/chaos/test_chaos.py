"""Any part of a run is killed, or stopped for a while, at any moment: the outcome is the right one, and nothing is left.

Each round draws a victim and a moment from a seed that every failure names. Most programs here go on for ever: then
nothing but the fault ends the run, and a wrong outcome can't hide behind the program's own end.
"""

from __future__ import annotations

import collections
import random
import re
import signal

import amount
import driver
import leftovers
import processtree
import pytest
import verdicts
from driver import WAYS, Driver, Gone

pytestmark = [pytest.mark.kernel, pytest.mark.soak]

COMMON = ("supervisor", "keeper", "monitor", "init", "program", "spare")
LEASED = {"allow": ("holder", "slirp4netns"), "pasta": ("holder", "pasta"), "record": ("holder",)}
ROUNDS, FULL_ROUNDS = 30, 100
"""Of each way: 150 in all, and 500."""
LATEST = 0.12
"""Seconds after the order within which a fault strikes: the start of a run, its program, its end."""
LIMIT = 5.0
"""Seconds that a run without end may take; reached only where the fault did not concern it."""
FOREVER = "echo up; sleep 60; exit 7"


class Fault:
    """What is to be done in one round."""

    def __init__(self, lot: random.Random, role: str) -> None:
        self.role = role
        self.kill = lot.random() < 0.8
        self.forever = self.kill and role != "spare" and lot.random() < 0.7
        self.delay = lot.uniform(0.0, LATEST)
        self.lasts = lot.uniform(0.0, 0.1)
        """Of a program that ends by itself, and of a stop."""
        self.number = signal.SIGKILL if self.kill else signal.SIGSTOP

    @property
    def command(self) -> list[str]:
        return ["sh", "-c", FOREVER if self.forever else f"echo up; sleep {self.lasts:.3f}; exit {verdicts.CODE}"]

    def __str__(self) -> str:
        kind = "without end" if self.forever else f"{self.lasts:.3f} s long"
        return f"{self.number.name} to {self.role} of a run {kind} after {self.delay:.4f} s"


class Chaos:
    """Rounds of faults in one way of running, with a driver that is replaced when it is the victim."""

    def __init__(self, way: str, watch: leftovers.Watch, seed: int) -> None:
        self.way, self.watch, self.seed = way, watch, seed
        self.done: collections.Counter[str] = collections.Counter()
        self.outcomes: collections.Counter[str] = collections.Counter()
        self.dead: set[int] = set()
        self.driver = self.fresh()

    def fresh(self) -> Driver:
        self.driver = driver.Driver(self.watch.where)
        self.control("a fresh driver")
        self.open = kinds(self.driver)
        self.dead.clear()
        return self.driver

    def control(self, context: str) -> None:
        """A run that nothing is done to ends by itself."""
        answer = self.driver.run(self.way, ["sh", "-c", f"echo up; exit {verdicts.CODE}"])
        assert verdicts.ended_by_itself(answer), f"{answer} {context}"

    def round(self, number: int, fault: Fault) -> None:
        context = f"(seed {self.seed}, round {number}: {fault})"
        self.watch.idle(self.driver.pid, context, self.dead)  # a connector of the run before may be on its way out
        self.driver.send(self.way, fault.command, options={"timeout": LIMIT})
        victim = self.strike(fault)
        try:
            answer = self.driver.answer()
        except Gone:
            assert victim is not None, context
            assert fault.role == "supervisor", context
            self.outcomes["gone"] += 1
            self.renew(context)
            return
        if fault.role == "supervisor" and victim is not None and fault.kill:
            self.late(answer, context)
            return
        self.judge(fault, victim, answer, context)
        self.watch.idle(self.driver.pid, context, self.dead)
        self.control(context)
        assert kinds(self.driver) == self.open, context

    def renew(self, context: str) -> None:
        """The driver was killed. A layer that its keeper had not heard of yet goes with the next run that makes one."""
        self.driver.close()
        if self.way == "overlay":
            self.watch.no_process_left(context)
        else:
            self.watch.nothing_left(context)
        self.fresh()
        self.watch.idle(self.driver.pid, context)

    def late(self, answer: dict, context: str) -> None:
        """It was killed when it had just answered."""
        assert verdicts.ended_by_itself(answer), f"{answer} {context}"
        self.renew(context)

    def strike(self, fault: Fault) -> processtree.Process | None:
        """Hit the victim at its moment, or as soon as it is there; None when the run was over before."""
        driver.pause(fault.delay)
        while True:
            victim = processtree.find(self.driver.pid, fault.role)
            if victim is not None and processtree.hit(victim, fault.number):
                break
            if self.driver.answered():
                return None
        self.done[f"{fault.number.name} {fault.role}"] += 1
        if fault.role == "spare" and fault.kill:
            self.dead.add(victim.pid)
        if fault.kill:
            leftovers.wait_for(lambda: not processtree.is_there(victim), f"end of the killed {fault.role}")
        else:
            driver.pause(fault.lasts)
            processtree.hit(victim, signal.SIGCONT)
        return victim

    def judge(self, fault: Fault, victim: processtree.Process | None, answer: dict, context: str) -> None:
        self.outcomes[answer.get("outcome", "raised")] += 1
        wrong = verdicts.wrong_with(answer)
        assert not wrong, f"{wrong}: {answer} {context}"
        if victim is None or not fault.kill:
            assert verdicts.ended_by_itself(answer), f"{answer} {context}"
            return
        if fault.role == "keeper" and processtree.find(self.driver.pid, "keeper") is not None:
            # It was gone before the run was handed to it, and another one took the run, or a part of it.
            good = undisturbed(answer, fault) or "lease" in answer["reason"]
            assert good, f"{answer} {context}"
            return
        assert verdicts.fits_kill(answer, fault.role, forever=fault.forever), f"{answer} {context}"


def undisturbed(answer: dict, fault: Fault) -> bool:
    """As if nothing had been done."""
    return verdicts.timed_out(answer) if fault.forever else verdicts.ended_by_itself(answer)


def kinds(of: Driver) -> dict[str, int]:
    """What a driver has open, counted by kind, once the thread of its last lease has ended."""

    def rest() -> list[str] | None:
        found = of.ask(descriptors=True)
        return found["descriptors"] if found["threads"] == 1 else None

    links = leftovers.wait_for(rest, "end of the service thread")
    return dict(collections.Counter(re.sub(r"\d+", "N", link) for link in links))


@pytest.mark.parametrize("way", WAYS)
def test_any_part_is_killed_or_stopped_at_any_moment(way, watch, record_property):
    seed = amount.seed()
    lot = random.Random(f"{seed} {way}")
    roles = [*COMMON, *LEASED.get(way, ())]
    chaos = Chaos(way, watch, seed)
    try:
        for number in amount.turns(ROUNDS, FULL_ROUNDS, len(roles)):
            if number % len(roles) == 0:
                lot.shuffle(roles)
            chaos.round(number, Fault(lot, roles[number % len(roles)]))
    except BaseException:
        chaos.driver.kill()
        raise
    chaos.driver.close()
    watch.nothing_left(f"(seed {seed})")
    record_property("done", f"seed {seed}: {dict(chaos.done)}, {dict(chaos.outcomes)}")
    print(f"{way}: seed {seed}: {dict(chaos.done)}; {dict(chaos.outcomes)}")
    hit = {each.partition(" ")[2] for each in chaos.done}
    assert hit >= set(roles) - {"spare"}, f"seed {seed}: nothing was done to {set(roles) - hit}: {chaos.done}"


def end_orphaned_boxes(watch: leftovers.Watch, context: str) -> None:
    """Once nothing else is left: with pid 1 of a box all of it goes."""

    def boxes() -> list[int]:
        return [pid for pid in processtree.children(watch.own) if pid not in watch.before and is_box(pid)]

    def others() -> list[str]:
        inside = {pid for box in boxes() for pid in (box, *processtree.below(box))}
        return [f"{pid} {processtree.name_of(pid)}" for pid in watch.processes() if pid not in inside]

    leftovers.settle(others, context)
    for pid in boxes():
        box = processtree.identify(pid)
        if box is not None:
            processtree.hit(box, signal.SIGKILL)
    watch.no_process_left(context)


def is_box(pid: int) -> bool:
    """The first process of a pid namespace."""
    first = processtree.read(pid, "status").partition("NSpid:")[2].split("\n")[0].split()[1:] == ["1"]
    return processtree.name_of(pid) == "bwrap" and first


BOTH, FULL_BOTH = 10, 40


@pytest.mark.parametrize("way", WAYS)
def test_the_supervisor_and_its_keeper_are_killed_together_at_any_moment(way, watch):
    """Nobody is left to end anything: each part sees for itself. Files that nobody could remove go with the next run.

    What may stay is a box that lost its monitor before bubblewrap tied the two together, which it does late: mostly
    one that waits to be let go, for ever; one with its program if it was let go at that very moment.
    """
    seed = amount.seed()
    lot = random.Random(f"both {seed} {way}")
    done = 0
    for number in amount.turns(BOTH, FULL_BOTH, 3):
        delay = lot.uniform(0.0, 0.06)
        context = f"(seed {seed}, round {number}: supervisor and keeper after {delay:.4f} s)"
        chaos = Chaos(way, watch, seed)
        victim = chaos.driver
        try:
            victim.send(way, ["sh", "-c", FOREVER], options={"timeout": LIMIT})
            driver.pause(delay)
            supervisor = processtree.find(victim.pid, "supervisor")
            assert processtree.hit(supervisor, signal.SIGSTOP)
            keeper = processtree.find(victim.pid, "keeper")
            done += keeper is not None and processtree.hit(keeper, signal.SIGKILL)
        finally:
            victim.kill()
        end_orphaned_boxes(watch, context)
        with driver.driver(watch.where) as after:
            assert verdicts.ended_by_itself(after.run(way, ["sh", "-c", f"echo up; exit {verdicts.CODE}"])), context
        watch.nothing_left(context)
    assert done
