"""Answer the question "what is at this address?"."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple, Optional

from findleaks.answers.sites import allocation_sites
from findleaks.audit.address_info import AddressDescription, Describer
from findleaks.audit.block_contents import describe_more
from findleaks.audit.block_words import WORDS, describe_words
from findleaks.audit.typed_places import list_members
from findleaks.results.addresses import AddressInfo
from findleaks.session import Session


class Identified(NamedTuple):
    """The analysis of an address, and its result."""

    answer: AddressDescription
    result: AddressInfo


def identify(session: Session, addresses: Sequence[int], words: Optional[int] = WORDS) -> list[Identified]:
    """Return what is at each address, with the recorded call stacks of blocks, and the words of
    blocks and variables. `words`: number of these words (0: all, None: none)."""
    describer = Describer(session)
    return [_identify(session, describer, address, words) for address in addresses]


def _identify(session: Session, describer: Describer, address: int, words: Optional[int]) -> Identified:
    answer = describer.subject(address)
    if answer.object is None:
        content = describer.content(answer)
        answer = replace(answer, phrase=f"{answer.phrase}; {content}") if content else answer
    block = answer.block
    sites = None if block is None else allocation_sites(session, answer.sites)
    contents = describe_more(session, block.address, block.size, block.type, block.hint) if block is not None and block.kind else ""
    members = list_members(session, block.index, address) if block is not None and block.kind else []
    found = describe_words(session, describer, answer, words) if words is not None and not members else None
    return Identified(answer, answer.result(sites, contents, found, members))
