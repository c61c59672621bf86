"""Makes `inference_pb2.py` out of `inference.proto`: `make generate`, checked by tests/frontend/kserve.

protoc's own modules put their messages into one table of the whole process, where Triton's client has the same names,
and run with few versions of protobuf. So the module has protoc's description of the file and a table of its own.
"""

from __future__ import annotations

import sys
import tempfile
import textwrap
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).parent
SOURCE: Final = "inference.proto"
_TEMPLATE: Final = '''\
"""The messages of inference.proto. Made from it by `make generate`; don't edit it by hand."""

from typing import Any

from google.protobuf import descriptor_pool, message_factory
from google.protobuf.internal import enum_type_wrapper

_POOL = descriptor_pool.DescriptorPool()
DESCRIPTOR = _POOL.AddSerializedFile(
{serialized}
)


def _message(name: str) -> Any:
    return message_factory.GetMessageClass(_POOL.FindMessageTypeByName(f"inference.{{name}}"))


{names}
'''


def generate(folder: Path) -> None:
    """Write it into a folder; `RuntimeError` where protoc refuses."""
    from grpc_tools import protoc

    with tempfile.TemporaryDirectory() as work:
        described = Path(work, "described")
        if protoc.main(["protoc", f"-I{HERE}", f"--descriptor_set_out={described}", SOURCE]) != 0:
            raise RuntimeError(f"protoc refuses {SOURCE}")
        (folder / "inference_pb2.py").write_text(_module(described.read_bytes()))


def _module(described: bytes) -> str:
    from google.protobuf import descriptor_pb2

    [file] = descriptor_pb2.FileDescriptorSet.FromString(described).file
    names = [f'{message.name} = _message("{message.name}")' for message in file.message_type]
    for enum in file.enum_type:
        names.append(
            f'{enum.name} = enum_type_wrapper.EnumTypeWrapper(_POOL.FindEnumTypeByName("inference.{enum.name}"))'
        )
        names += [f"{value.name} = {value.number}" for value in enum.value]
    return _TEMPLATE.format(serialized=_literal(file.SerializeToString()), names="\n".join(names))


def _literal(data: bytes) -> str:
    """Return bytes as lines of hexadecimal digits: short, and the same whatever writes them."""
    lines = textwrap.wrap(data.hex(), 104)
    return "    bytes.fromhex(\n" + "\n".join(f'        "{line}"' for line in lines) + "\n    )"


if __name__ == "__main__":
    generate(Path(sys.argv[1]) if sys.argv[1:] else HERE)
