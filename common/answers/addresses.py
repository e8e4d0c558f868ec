"""The answer to "what is at this address?"."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Optional

from findleaks.answers.sites import allocation_sites
from findleaks.audit.address_info import AddressDescription, Describer
from findleaks.audit.typed_places import list_members
from findleaks.results.addresses import AddressInfo
from findleaks.session import Session


class Identified(NamedTuple):
    """The analysis of an address, and its result."""

    answer: AddressDescription
    result: AddressInfo


def identify(session: Session, addresses: Sequence[int], describer: Optional[Describer] = None) -> list[Identified]:
    """What is at each address, with the recorded call stacks of blocks."""
    describer = describer or Describer(session)
    answers = [describer.answer(address) for address in addresses]
    return [Identified(one, _result(session, one)) for one in answers]


def _result(session: Session, answer: AddressDescription) -> AddressInfo:
    if answer.block is None:
        return answer.result()
    return answer.result(allocation_sites(session, answer.sites), list_members(session, answer.block.index))
