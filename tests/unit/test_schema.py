"""The JSON schema of the output of commands: it is current, describes each field, and refuses undescribed keys."""

from __future__ import annotations

import copy
import json
from typing import Any, get_args

import pytest
import schemas
from debuggers import ROOT, run_cli
from jsonschema import Draft202012Validator, ValidationError

from findleaks.escaping import json_line
from findleaks.results.addresses import Block
from findleaks.results.record import Record, json_fields, plain
from findleaks.results.share_sort import ShareSort
from findleaks.results.sites import StackFrame
from findleaks.results.verdict import ShareWord

FILE = ROOT / "common" / "results" / "findleaks-1.schema.json"
SAMPLE = str(ROOT / "cores" / "sample.core.gz")


def test_the_file_is_current() -> None:
    assert schemas.load_generator().text() == FILE.read_text(encoding="utf-8"), "run .venv/bin/python tools/generate_schema.py"
    Draft202012Validator.check_schema(json.loads(FILE.read_text(encoding="utf-8")))


@pytest.fixture(scope="module")
def printed() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run_cli("find", "--json", SAMPLE, check=True).stdout)
    return found


def test_shipped_schema_accepts_the_output(printed: dict[str, Any]) -> None:
    whole = Draft202012Validator(json.loads(FILE.read_text(encoding="utf-8")))
    whole.validate(printed)
    rows = run_cli("blocks", "--json", "--limit", "3", SAMPLE, check=True).stdout.splitlines()
    for row in rows:
        whole.validate(json.loads(row))
    assert len(rows) >= 3


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"groups": "none"}, "groups"),
        ({"trusted": 1}, "trusted"),
        ({"next": [1]}, "next"),
        ({"schema": "findleaks/2"}, "schema"),
        ({"undescribed": 1}, None),
    ],
)
def test_other_forms_are_refused(printed: dict[str, Any], change: dict[str, Any], where: str) -> None:
    with pytest.raises(ValidationError) as refused:
        schemas.check_object({**printed, **change})
    assert next(iter(refused.value.path), None) == where


def test_missing_keys_and_plain_addresses_are_refused(printed: dict[str, Any]) -> None:
    without = {key: value for key, value in printed.items() if key != "groups"}
    with pytest.raises(ValidationError, match="'groups' is a required property"):
        schemas.check_object(without)
    wrong = copy.deepcopy(printed)
    wrong["groups"][0]["examples"] = [4096]
    with pytest.raises(ValidationError, match="4096 is not of type 'string'"):
        schemas.check_object(wrong)


def test_keys_follow_the_fields() -> None:
    """Optional keys are left out if they have their default. Addresses are hexadecimal. Text from the target is escaped
    only when it is printed."""
    frame = StackFrame(0x401000, "main", 4, None, "a.c", None)
    assert list(frame.to_json().items()) == [
        ("address", "0x401000"),
        ("function", "main"),
        ("offset", 4),
        ("module", None),
        ("file", "a.c"),
        ("line", None),
    ]
    assert list(StackFrame(None, None, None, None).to_json()) == ["address", "function", "offset", "module"]
    hostile = Block(16, 8, "in-use", "definite", "glibc", "", None, None, "\x1b[31m\n\udcff")
    assert hostile.to_json()["hint"] == "\x1b[31m\n\udcff"
    assert "\\u001b[31m\\n\\\\xff" in json_line(hostile.to_json())
    assert "phrase" not in hostile.to_json() and "phrase" not in {one.key for one in json_fields(Block)}


def test_results_are_frozen() -> None:
    def below(record: type[Record]) -> set[type[Record]]:
        return {record}.union(*map(below, record.__subclasses__()))

    schemas.load_generator()
    classes = below(Record) - {Record}
    assert len(classes) > 50
    assert all(one.__dataclass_params__.frozen for one in classes)  # type: ignore[attr-defined]


def test_sorts_of_shares_are_those_of_the_schema() -> None:
    """The enumeration and the JSON schema have the same words, in the same order."""
    assert [one.value for one in ShareSort] == list(get_args(ShareWord))
    assert {type(plain(one)) for one in ShareSort} == {str}  # not members of the enumeration
