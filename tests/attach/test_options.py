"""Options and suppressions: what is not understood is an error that says what is."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvsan.checker.options import HELP, Options, OptionsError, from_environment, parse, shown, switched_on
from kvsan.checker.suppressions import parse as parse_suppressions
from kvsan.checker.suppressions import read
from kvsan.model.hazard import Hazard, Kind, Site
from kvsan.model.ops import Blocks


def test_every_option_is_explained() -> None:
    assert set(HELP) == set(Options.__dataclass_fields__)


def test_the_docs_list_every_option() -> None:
    text = (Path(__file__).parents[2] / "docs" / "debug-mode.md").read_text()
    missing = [key for key in HELP if f"| `{key}` |" not in text]
    assert not missing


def test_options_are_read() -> None:
    given = parse("halt_on_error=1:exitcode=3:trace='/a:b/t.jsonl':incident=2.5: ")
    assert given == Options(halt_on_error=True, exitcode=3, trace="/a:b/t.jsonl", incident=2.5)
    assert parse("") == Options()
    assert parse(shown(given).replace("/a:b/t.jsonl", "'/a:b/t.jsonl'")) == given
    assert from_environment({"KVSAN_OPTIONS": "check=no"}) == Options(check=False)


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("halt_on_eror=1", 'unknown key "halt_on_eror": is "halt_on_error" meant?'),
        ("zzz=1", "accepted: halt_on_error, exitcode,"),
        ("trace", 'has "trace" without a value'),
        ("trace=", 'has "trace" without a value'),
        ("exitcode=256", "an exit status from 0 to 255"),
        ("exitcode=-1", "an exit status from 0 to 255"),
        ("incident=long", "a number from 0"),
        ("incident_mb=0", "a number from 1; incident=0 keeps none"),
        ("halt_on_error=maybe", "accepted: 0 or 1"),
        ("check=1:check=0", 'has "check" twice'),
        ("trace='x", "a quote that is not closed"),
    ],
)
def test_wrong_options_are_errors(text: str, wrong: str) -> None:
    with pytest.raises(OptionsError) as caught:
        parse(text)
    assert wrong in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("value", "on"), [("1", True), ("true", True), ("0", False), ("", False), ("off", False)])
def test_the_switch(value: str, on: bool) -> None:
    assert switched_on({"KVSAN": value}) is on
    assert not switched_on({})


def test_a_switch_that_says_neither_is_an_error() -> None:
    with pytest.raises(OptionsError, match="accepted: 1 or 0"):
        switched_on({"KVSAN": "perhaps"})


def hazard(kind: Kind = Kind.WAR, earlier: str = "forward", later: str = "load", site: str | None = None) -> Hazard:
    return Hazard(
        kind, "gpu", Blocks(((1, 2),)), Site(0, earlier, "compute", "h0"), Site(1, later, "side", "h1", site=site)
    )


def test_suppressions_match_on_properties() -> None:
    known = parse_suppressions(
        ["# a comment", "", "kind=WAR earlier=forw* later=load  # issue 12", "later_site='copy.py:*'  # known"]
    )
    first, second = known.lines
    assert known.find(hazard()) is first
    assert known.find(hazard(kind=Kind.RAW)) is None
    assert known.find(hazard(kind=Kind.RAW, site="copy.py:12")) is second
    assert known.find(hazard(later="store")) is None
    assert known.unused() == [first, second]
    first.used = 1
    assert known.unused() == [second]
    assert str(first) == "suppressions:3: kind=WAR earlier=forw* later=load (issue 12)"


@pytest.mark.parametrize(
    ("line", "pattern"),
    [
        ("later_on=load#2   # known: see 12", "load#2"),
        ("'later_on=load #2' # known: see 12", "load #2"),
        ('later_on="#2"# 3 # known: see 12', None),
        ("later_on=it\\'s # known: see 12", "it's"),
        ("later_on=load # known: see 12", "load"),
        ("later_on=load\t# known: see 12", "load"),
    ],
)
def test_a_pattern_may_hold_the_sign_of_a_reason(line: str, pattern: str | None) -> None:
    if pattern is None:
        with pytest.raises(OptionsError, match="accepted: property=pattern"):
            parse_suppressions([line])
        return
    (found,) = parse_suppressions([line]).lines
    assert (found.patterns, found.reason) == ({"later_on": pattern}, "known: see 12")


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("kind=WAR", "gives no reason"),
        ("kind=WAR later_on=load#2", "gives no reason"),
        ("kind=WAR 'later_on=load # 2'", "gives no reason"),
        ("kind=WAR #  ", "gives no reason"),
        ("kin=WAR # x", 'is "kind" meant?'),
        ("kind # x", "accepted: property=pattern"),
        ("kind='WAR # x", "cannot be read"),
    ],
)
def test_wrong_suppressions_are_errors(line: str, wrong: str) -> None:
    with pytest.raises(OptionsError, match=r"suppressions:1 .*") as caught:
        parse_suppressions([line])
    assert wrong in str(caught.value)


def test_a_file_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OptionsError, match="cannot be read"):
        read(str(tmp_path / "none"))
    good = tmp_path / "known.supp"
    good.write_text("pool=gpu # r\n")
    assert read(str(good)).lines[0].place == f"{good}:1"
