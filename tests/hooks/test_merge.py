"""What several answers come to: the strictest, in order of configuration."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stockade.policies.errors import RequestError
from stockade.sandbox.hooks.merge import merge
from stockade.sandbox.hooks.model import VERDICTS, HookOutcome, MergedOutcome

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def out(verdict: str = "none", reason: str = "", **more: Any) -> HookOutcome:
    return HookOutcome(verdict, reason=reason, **more)


def rewrite(value: Any, mode: str = "replace", verdict: str = "allow") -> HookOutcome:
    return out(verdict, updated_input=value, update_mode=mode)


def test_nothing_comes_to_no_objection() -> None:
    assert merge([]) == MergedOutcome()


@pytest.mark.parametrize("stricter", range(len(VERDICTS) - 1))
def test_the_strictest_wins_wherever_it_stands(stricter: int) -> None:
    one, other = out(VERDICTS[stricter], "yes"), out(VERDICTS[stricter + 1], "no")
    for outcomes in ([one, other], [other, one]):
        merged = merge(outcomes)
        assert (merged.verdict, merged.reason) == (VERDICTS[stricter], "yes")
        assert merged.winners == (outcomes.index(one),)


def test_a_halt_stays_whatever_the_verdict_and_has_the_first_reason() -> None:
    halts = [out(halt=True), out("allow", halt=True, stop_reason="first"), out(halt=True, stop_reason="second")]
    merged = merge([out("deny", "no"), *halts])
    assert (merged.verdict, merged.halt, merged.stop_reason) == ("deny", True, "first")
    assert not merge([out("deny", "no")]).halt


@pytest.mark.parametrize(
    ("outcomes", "labels", "reason"),
    [
        ([out("deny", "a"), out("allow", "c"), out("deny", "b")], (), "a\n\nb"),
        ([out("deny", "a"), out("deny", "a")], (), "a"),
        ([out("deny", "a"), out("allow", "c"), out("deny", "b")], ("x", "y", "z"), "x: a\n\nz: b"),
        ([out("deny", "a")], ("x",), "a"),
        ([out("deny", " "), out("deny", "b")], ("x", "y"), "y: b"),
    ],
)
def test_reasons_are_those_of_the_winners(
    outcomes: list[HookOutcome], labels: tuple[str, ...], reason: str
) -> None:
    assert merge(outcomes, labels=labels).reason == reason


def test_contexts_and_messages_of_all_are_kept_in_order() -> None:
    merged = merge(
        [out("deny", context=("a",)), out(context=("b", "c"), system_messages=("m",)), out(system_messages=("n",))]
    )
    assert (merged.context, merged.system_messages) == (("a", "b", "c"), ("m", "n"))


@pytest.mark.parametrize(
    ("outcomes", "expected", "mode", "conflicts"),
    [
        ([rewrite({"a": 1})], {"a": 1}, "replace", 0),
        ([rewrite({"a": 1}), rewrite({"b": 2})], {"b": 2}, "replace", 1),
        ([rewrite({"a": 1}), rewrite({"a": 1})], {"a": 1}, "replace", 0),
        ([rewrite({"a": 1}), rewrite({"a": True})], {"a": True}, "replace", 1),
        ([rewrite({"a": [1]}), rewrite({"a": [1.0]})], {"a": [1.0]}, "replace", 0),
        ([rewrite({"a": 1}, "merge"), rewrite({"b": 2}, "merge")], {"a": 1, "b": 2}, "merge", 0),
        ([rewrite({"a": {"x": 1}}, "merge"), rewrite({"a": {"y": 2}}, "merge")], {"a": {"y": 2}}, "merge", 1),
        ([rewrite({"a": 1, "b": 1}), rewrite({"b": 2}, "merge")], {"a": 1, "b": 2}, "replace", 1),
        ([rewrite({"a": 1}, "merge"), rewrite({"b": 2})], {"b": 2}, "replace", 1),
        ([rewrite({"a": 1}), rewrite({})], {}, "replace", 1),
        ([rewrite({"a": 1}), out("allow"), rewrite({"b": 1}, "merge", "none")], {"a": 1, "b": 1}, "replace", 0),
        ([rewrite({"a": 1}), out("deny", "no")], None, "replace", 0),
    ],
)
def test_rewrites_in_order(outcomes: list[HookOutcome], expected: Any, mode: str, conflicts: int) -> None:
    merged = merge(outcomes)
    assert (merged.updated_input, merged.update_mode, len(merged.conflicts)) == (expected, mode, conflicts)


def test_a_conflict_can_be_a_deny() -> None:
    pair = [rewrite({"a": 1}), rewrite({"a": 2})]
    merged = merge(pair, on_conflict="deny")
    assert (merged.verdict, merged.updated_input) == ("deny", None)
    assert "handler 2" in merged.reason
    assert [each.code for each in merged.conflicts] == ["rewrite"]
    assert merge(pair[:1], on_conflict="deny").verdict == "allow"


def test_outputs_and_other_fields() -> None:
    merged = merge([
        out(updated_output="a", extras=(("x", 1), ("y", 1))),
        out(updated_output="b", extras=(("x", 2),)),
    ])  # fmt: skip
    assert (merged.updated_output, merged.extras) == ("b", (("x", 2), ("y", 1)))
    assert [each.code for each in merged.conflicts] == ["rewrite", "extra"]


@pytest.mark.parametrize("wrong", [{"labels": ("a", "b")}, {"on_conflict": "first"}])
def test_what_does_not_fit_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(RequestError, match="could not merge the outcomes"):
        merge([out()], **wrong)


OUTCOMES = st.builds(
    HookOutcome,
    st.sampled_from(VERDICTS),
    st.booleans(),
    reason=st.text(max_size=3),
    updated_input=st.none() | st.dictionaries(st.sampled_from("ab"), st.booleans()),
    update_mode=st.sampled_from(("replace", "merge")),
)


@given(st.lists(OUTCOMES, max_size=5))
def test_one_deny_is_enough_and_nothing_is_allowed_that_no_hook_allowed(outcomes: list[HookOutcome]) -> None:
    merged = merge(outcomes)
    said = [each.verdict for each in outcomes]
    assert (merged.verdict == "deny") == ("deny" in said)
    assert merged.verdict in (*said, "none")
    assert merged.halt == any(each.halt for each in outcomes)
    assert merged.outcomes == tuple(outcomes)
    if merged.verdict == "deny":
        assert merged.updated_input is None
    elif outcomes and outcomes[-1].updated_input is not None:
        last = outcomes[-1].updated_input
        assert last.items() <= merged.updated_input.items()
