"""A DLL that Wine before 9 lacks and every Rust extension module asks for: `ProcessPrng`, passed on to another one.

It holds no code: its only export is forwarded by the loader.
"""

from __future__ import annotations

import struct

NAME = "bcryptprimitives.dll"
EXPORT, FORWARDED_TO = "ProcessPrng", "ADVAPI32.SystemFunction036"  # the same arguments: where to, how many bytes

_PAGE, _BLOCK = 0x1000, 0x200
_X64, _PE32_PLUS, _EXECUTABLE_LARGE_DLL, _READABLE_DATA = 0x8664, 0x20B, 0x2022, 0x40000040


def dll() -> bytes:
    """The file. Source: Microsoft's PE format, "The .edata Section" and "Optional Header Windows-Specific Fields"."""
    table = 40  # of the directory; three addresses follow it, then the texts
    texts = [text.encode("ascii") + b"\0" for text in (NAME, EXPORT, FORWARDED_TO)]
    starts = [_PAGE + table + 12 + sum(map(len, texts[:number])) for number in range(3)]
    addresses = [_PAGE + table + 4 * number for number in range(3)]
    section = struct.pack("<IIHHIIIIIII", 0, 0, 0, 0, starts[0], 1, 1, 1, *addresses)
    section += struct.pack("<III", starts[2], starts[1], 0) + b"".join(texts)
    optional = struct.pack(
        "<HBBIIIIIQIIHHHHHHIIIIHHQQQQII",
        _PE32_PLUS, 14, 0, 0, _BLOCK, 0, 0, 0, 0x7FF0_1234_0000, _PAGE, _BLOCK, 6, 0, 0, 0, 6, 0, 0,
        2 * _PAGE, _BLOCK, 0, 2, 0x100, 1 << 20, _PAGE, 1 << 20, _PAGE, 0, 16,
    ) + struct.pack("<II", _PAGE, len(section)) + bytes(15 * 8)  # fmt: skip
    head = b"MZ".ljust(0x3C, b"\0") + struct.pack("<I", 0x40) + b"PE\0\0"
    head += struct.pack("<HHIIIHH", _X64, 1, 0, 0, 0, len(optional), _EXECUTABLE_LARGE_DLL) + optional
    head += struct.pack("<8sIIIIIIHHI", b".rdata", len(section), _PAGE, _BLOCK, _BLOCK, 0, 0, 0, 0, _READABLE_DATA)
    return head.ljust(_BLOCK, b"\0") + section.ljust(_BLOCK, b"\0")
