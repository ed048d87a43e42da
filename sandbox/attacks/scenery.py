"""Attempts that are more than a program in a box: each plays around runs of its own, and says what it saw."""

from __future__ import annotations

import os
import sys
from importlib import import_module

from stockade.policies.errors import StockadeError
from stockade.policies.record import Record
from stockade.sandbox.attacks.bait import changed
from stockade.sandbox.attacks.batch import set_environment
from stockade.sandbox.attacks.judge import NOT_TRIED, STOPPED, THROUGH, Result

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from stockade.sandbox.attacks.bait import Bait

    Play = Callable[["Stage"], "Seen"]

FILES = ("plants", "terminals", "lifetimes", "crowds", "verdicts", "hooks")
PREFIX = "stockade.sandbox.attacks.scenes"


class Seen(Record):
    """What a scene saw. ``control``: whether the means it used work where nothing stops them."""

    through: str
    """What the attack achieved; empty if nothing."""
    control: bool
    evidence: str


class Stage(Record):
    """Where a scene plays."""

    bait: Bait
    place: str
    """A directory of its own, empty, that everybody may write."""
    user: str
    """``process.user`` of its runs."""


class Scene(Record):
    """One attempt of this kind."""

    name: str
    group: str
    title: str
    layer: str
    play: Play


SCENES: dict[str, Scene] = {}


def scene(layer: str) -> Callable[[Play], Play]:
    """Registers a function as a scene of its module's GROUP; its name and docstring are id and title."""

    def register(play: Play) -> Play:
        title = (play.__doc__ or "").strip().partition("\n")[0].rstrip(".")
        group = sys.modules[play.__module__].GROUP
        add(group, play.__name__.replace("_", "-"), title, play, layer)
        return play

    return register


def add(group: str, word: str, title: str, play: Play, layer: str) -> None:
    """Registers a scene that is made by a table."""
    subject = next(each for each in group.lower().replace(",", "").split(" ") if len(each) > 1)
    name = f"{subject}.{word}"
    assert name not in SCENES, name
    SCENES[name] = Scene(name, group, title, layer, play)


def load() -> list[Scene]:
    for name in FILES:
        import_module(f"{PREFIX}.{name}")
    return list(SCENES.values())


def play_all(scenes: Sequence[Scene], bait: Bait, user: str) -> list[Result]:
    set_environment(bait)
    bait.lay_files()
    return [played(each, bait, user) for each in scenes]


def played(scene: Scene, bait: Bait, user: str) -> Result:
    """One scene, in a directory of its own, and what differs on the host afterwards."""
    place = f"{bait.top}/scene-{scene.name}"
    os.mkdir(place)
    os.chmod(place, 0o777)  # noqa: S103  (a dropped root's runs are to write there)
    before = bait.facts()
    try:
        seen = scene.play(Stage(bait, place, user))
    except (OSError, StockadeError) as error:
        return told(scene, NOT_TRIED, "", f"the attempt itself failed: {error}")
    through = seen.through or ", ".join(changed(before, bait.facts()))
    if through:
        return told(scene, THROUGH, "", through)
    if not seen.control:
        return told(scene, NOT_TRIED, "", f"it does not work outside either: {seen.evidence}")
    return told(scene, STOPPED, scene.layer, seen.evidence)


def told(scene: Scene, state: str, layer: str, evidence: str) -> Result:
    return Result(scene.name, scene.group, scene.title, state, layer, evidence)
