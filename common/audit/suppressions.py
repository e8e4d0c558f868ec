"""Suppressions: files of rules for leaks that the user does not want to see, one rule a line.

# comment
leak:PATTERN     type, module or allocation site contains PATTERN; * matches anything, ^ and $ are
                 anchors (as in LeakSanitizer)
type:GLOB        the whole type matches; * and ? are wildcards
module:GLOB      the file that defines the type, with or without its folder
string:GLOB      the text at the start of the block, as shown (it is shortened, so end it with *)
size:A-B         the block's usable size in bytes: 48, 48-64, 1K-, -16, 1M-2M
"""

from __future__ import annotations

from typing import Optional

from findleaks.arg_types import SizeRange, parse_size_range
from findleaks.errors import UsageError
from findleaks.value_classes import dataclass
from findleaks.wildcards import matches

KINDS = ("leak", "type", "module", "string", "size")
_LARGEST_FILE = 16 << 20


@dataclass(frozen=True)
class SuppressionRule:
    """A rule. `sizes`: lowest and highest size; only set for a "size" rule."""

    kind: str
    pattern: str
    line: int
    sizes: Optional[SizeRange] = None

    def __str__(self) -> str:
        return f"{self.kind}:{self.pattern}"

    def matches(self, type_name: str, size: int, hint: str, module: str, site: str) -> bool:
        if self.kind == "leak":
            return any(text and matches_pattern(self.pattern, text) for text in (type_name, module, site))
        if self.sizes is not None:
            return self.sizes.low <= size <= self.sizes.high
        if self.kind == "type":
            return matches(self.pattern, type_name)
        if self.kind == "module":
            return bool(module) and (matches(self.pattern, module) or matches(self.pattern, module.rsplit("/", 1)[-1]))
        return bool(hint) and (matches(self.pattern, hint) or matches(self.pattern, _unquote_hint(hint)))


@dataclass
class RuleUse:
    """How often a rule matched: the number of groups that it covered, and the blocks and bytes that
    the caller added."""

    groups: int = 0
    blocks: int = 0
    bytes: int = 0


class Suppressions:
    """The rules of a file, in the order of the file, and how often each was used."""

    def __init__(self, rules: list[SuppressionRule], path: str = "") -> None:
        self.rules = rules
        self.path = path
        self.uses: dict[SuppressionRule, RuleUse] = {}

    def match(self, type_name: str, size: int, hint: str, module: str = "", site: str = "") -> Optional[SuppressionRule]:
        """Return the first rule that covers a group of leaks, or None. The rule's number of uses is
        increased."""
        for rule in self.rules:
            if rule.matches(type_name, size, hint, module, site):
                self.uses.setdefault(rule, RuleUse()).groups += 1
                return rule
        return None

    def add(self, rule: SuppressionRule, blocks: int, size: int) -> None:
        """Add suppressed blocks and bytes to the counts of a rule."""
        use = self.uses.setdefault(rule, RuleUse())
        use.blocks += blocks
        use.bytes += size

    def list_unused(self) -> list[SuppressionRule]:
        """Return rules that never matched: they may be misspelt, or their leak may be fixed."""
        return [rule for rule in self.rules if rule not in self.uses]


def load_suppressions(path: str) -> Suppressions:
    """Read a file of rules. Raises UsageError, which names file and line, if the file is unreadable
    or invalid."""
    try:
        with open(path, "rb") as file:
            data = file.read(_LARGEST_FILE + 1)
    except OSError as error:
        raise UsageError(f"{path}: cannot read suppressions: {(error.strerror or str(error)).lower()}") from None
    if len(data) > _LARGEST_FILE:
        raise UsageError(f"{path}: too large for a file of suppressions")
    return parse_rules(data.decode("utf-8", "replace"), path)


def parse_rules(text: str, path: str) -> Suppressions:
    """Return the rules in `text`. `path` is used in messages."""
    rules = []
    for number, line in enumerate(text.lstrip("\ufeff").splitlines(), 1):
        line = line.strip()
        if line and not line.startswith("#"):
            rules.append(_rule(line, number, f"{path}:{number}"))
    return Suppressions(rules, path)


def _rule(line: str, number: int, where: str) -> SuppressionRule:
    kind, colon, pattern = (part.strip() for part in line.partition(":"))
    if not colon or kind not in KINDS:
        raise UsageError(f"{where}: {line[:60]!r} is not a suppression; expected a rule:  {', '.join(k + ':…' for k in KINDS)}")
    if not pattern:
        raise UsageError(f"{where}: {kind}: the pattern is missing")
    if kind != "size":
        return SuppressionRule(kind, pattern, number)
    try:
        return SuppressionRule(kind, pattern, number, parse_size_range(pattern))
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from None


def _unquote_hint(hint: str) -> str:
    """Return the text of a hint: `+8 "text…"` -> `text…`."""
    begin = hint.find('"')
    return hint[begin + 1 : -1] if 0 <= begin < len(hint) - 1 and hint.endswith('"') else hint


def matches_pattern(pattern: str, text: str) -> bool:
    """Whether `text` contains `pattern`, with the rules of LeakSanitizer: * is a wildcard; ^ and $
    are the ends of the text (LLVM 19 compiler-rt lib/sanitizer_common/sanitizer_common.cpp,
    TemplateMatch)."""
    from_start, to_end = pattern.startswith("^"), pattern.endswith("$")
    inner = pattern[from_start : len(pattern) - to_end]
    return matches(("" if from_start else "*") + inner + ("" if to_end else "*"), text, question=False)
