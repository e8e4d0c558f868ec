"""The answer to "what is at this address?"."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple, Optional

from findleaks.answers.sites import allocation_sites
from findleaks.audit.address_info import AddressDescription, Describer
from findleaks.results.addresses import AddressInfo
from findleaks.session import Session


class Identified(NamedTuple):
    """The analysis of an address, and its result."""

    answer: AddressDescription
    result: AddressInfo


def identify(session: Session, addresses: Sequence[int], describer: Optional[Describer] = None) -> list[Identified]:
    """What is at each address, with the recorded call stacks of blocks."""
    describer = describer or Describer(session)
    answers = [replace(one, phrase=one.phrase + describer.content(one)) for one in map(describer.answer, addresses)]
    return [Identified(one, one.result(None if one.block is None else allocation_sites(session, one.sites))) for one in answers]
