"""Load protobuf if this Python has it. Inside GDB and LLDB, `findleaks.bootstrap` finds it."""

from __future__ import annotations

from types import ModuleType

from findleaks.errors import TargetError
from findleaks.libraries import is_in_working_folder

PROTOBUF_MISSING = (
    "FILE.pb.gz needs Python's package protobuf, 4.25 or newer: pip install 'findleaks[pprof]', or make venv in a checkout; "
    "other formats do not need it"
)


class ProtobufMissing(TargetError):
    """Raised if profiles in pprof's format cannot be written. The message is PROTOBUF_MISSING."""

    def __init__(self) -> None:
        super().__init__(PROTOBUF_MISSING)


def require_protobuf() -> tuple[ModuleType, ModuleType, ModuleType]:
    """Load the modules `descriptor_pb2`, `descriptor_pool` and `message_factory`.
    Raises ProtobufMissing if protobuf is missing, too old, broken, or only in the working
    directory."""
    try:
        if is_in_working_folder("google") or is_in_working_folder("google.protobuf"):
            raise ProtobufMissing
        from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

        message_factory.GetMessageClass  # noqa: B018  # since 4.22
    except ProtobufMissing:
        raise
    except Exception:  # a broken install raises ImportError, TypeError, SyntaxError…
        raise ProtobufMissing from None
    return descriptor_pb2, descriptor_pool, message_factory
