"""The release checklist reports missing items, and the bill of materials lists all components."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from documented import ROOT
from schemas import tool

RELEASE, SBOM = tool("release"), tool("write_sbom")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "common/results").mkdir(parents=True)
    (tmp_path / "common/__init__.py").write_text('__version__ = "0.2.0"\n')
    (tmp_path / RELEASE.SCHEMA).write_text((ROOT / RELEASE.SCHEMA).read_text(encoding="utf-8"))
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n\n## Unreleased\n\n## 0.2.0 – 2027-01-31\n\n- new\n\n## 0.1.0 – 2026-12-01\n")
    (tmp_path / "SECURITY.md").write_text("| Contact | security@example.org |\n")
    (tmp_path / "pyproject.toml").write_text('[project]\n\n[project.urls]\nHomepage = "https://example.org"\n')
    for words in (
        ["init", "-q"],
        ["add", "."],
        ["-c", "user.name=x", "-c", "user.email=x@example.org", "commit", "-qm", "x"],
        ["tag", "v0.1.0"],
    ):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    return tmp_path


def test_a_ready_tree(tree: Path) -> None:
    filled_in = (RELEASE.changelog_is_ready, RELEASE.contact_is_filled_in, RELEASE.links_are_filled_in)
    for step in (RELEASE.version_is_new, *filled_in, RELEASE.tree_is_clean):
        assert list(step(tree)) == []
    assert list(RELEASE.schema_is_compatible(tree)) == []


def test_each_step_reports_problems(tree: Path) -> None:
    (tree / "common/__init__.py").write_text('__version__ = "0.1.0"\n')
    (tree / "CHANGELOG.md").write_text("## Unreleased\n\n- a line\n\n## 0.0.9 – 2026-01-01\n")
    (tree / "SECURITY.md").write_text("| Contact | *(to be filled in by the maintainer)* |\n")
    (tree / "pyproject.toml").write_text("[project]\n")
    schema = json.loads((tree / RELEASE.SCHEMA).read_text(encoding="utf-8"))
    del schema["$defs"]["Block"]["properties"]["address"]
    (tree / RELEASE.SCHEMA).write_text(json.dumps(schema))
    assert "tag v0.1.0 exists" in next(RELEASE.version_is_new(tree))
    assert len(list(RELEASE.changelog_is_ready(tree))) == 2
    assert list(RELEASE.contact_is_filled_in(tree)) == ["SECURITY.md: Contact is not filled in"]
    assert "[project.urls]" in next(RELEASE.links_are_filled_in(tree))
    assert "5 files" in next(RELEASE.tree_is_clean(tree))
    assert "Block: address is gone" in list(RELEASE.schema_is_compatible(tree))


def test_compatibility_of_the_schema() -> None:
    old = {
        "$defs": {"A": {"type": "object", "required": ["x", "y"], "properties": {"x": {"type": "integer"}, "y": {"$ref": "#/$defs/A"}}}},
        "properties": {"list": {"type": "array", "items": {"type": ["string", "null"]}}},
    }
    assert list(RELEASE.broken_promises(old, old)) == []
    new = copy.deepcopy(old)
    new["$defs"]["B"] = {}  # type: ignore[index]
    new["$defs"]["A"]["properties"]["z"] = {"type": "string"}  # type: ignore[index]
    new["properties"]["list"]["items"]["type"] = "string"  # type: ignore[index]
    assert list(RELEASE.broken_promises(old, new)) == [], "an added key breaks no reader"
    new["$defs"]["A"] = {"type": "object", "required": ["x"], "properties": {"x": {"type": ["integer", "null"]}, "y": {"type": "object"}}}  # type: ignore[index]
    new["properties"]["list"]["items"]["type"] = ["string", "integer"]  # type: ignore[index]
    assert list(RELEASE.broken_promises(old, new)) == [
        "list: items: may be integer now",
        "A: y is not always present any more",
        "A: x: may be null now",
        "A: y: refers to None, not to #/$defs/A",
    ]


def test_the_bill_of_materials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    (tmp_path / "x.whl").write_bytes(b"")
    made = SBOM.sbom([tmp_path / "x.whl"])
    assert made["metadata"]["timestamp"] == "2023-11-14T22:13:20Z"
    (archive,) = made["metadata"]["component"]["components"]
    assert archive["hashes"][0]["content"] == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    required = {one["name"] for one in made["components"] if one.get("scope") == "required"}
    assert required == {"capstone", "pyelftools", "zstandard"}
    assert all("licenses" in one for one in made["components"] if one.get("scope") == "required")
    optional = {one["name"] for one in made["components"] if one.get("scope") == "optional"}
    assert {"protobuf", "pillow", "pandas", "pyarrow"} <= optional and "pytest" not in optional
    cores = [one for one in made["components"] if one["type"] == "file"]
    assert "cores/sample.core.gz" in {one["name"] for one in cores}
    assert all(
        {part["licenses"][0]["license"]["id"] for part in one["components"]} == {"LGPL-2.1-or-later", "GPL-2.0-only"} for one in cores
    )
    references = [one["bom-ref"] for one in made["components"] if "bom-ref" in one]
    assert len(references) == len(set(references))


@pytest.mark.matrix
def test_the_bill_is_what_cyclonedx_describes(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "pip", "install", "-q", "--target", str(tmp_path), "cyclonedx-python-lib[json-validation]"]
    subprocess.run(words, check=True)
    code = (
        "import sys; from cyclonedx.validation.json import JsonStrictValidator; from cyclonedx.schema import SchemaVersion; "
        "sys.exit(str(JsonStrictValidator(SchemaVersion.V1_6).validate_str(sys.stdin.read()) or '') or None)"
    )
    document = json.dumps(SBOM.sbom([]))
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], input=document, capture_output=True, text=True, env=environment)
    assert (done.returncode, done.stderr) == (0, "")
