"""Turns cubins into readable machine code, many at once.

`nvdisasm` spends most of its time starting, and it reads one file. So the code sections of many cubins are
laid end to end and read as one raw binary; the text is cut apart again, addresses start at 0, and branch
targets, which raw code shows as addresses, become labels. A cubin with several code sections is read by
itself.
"""

import re
import struct
import subprocess
import tempfile
from pathlib import Path

from kernels.lab.compile.binaries import disassemble, tool, without_hints

BATCH = 16
_LINE = re.compile(r"^(\s*/\*)([0-9a-f]{4,})(\*/\s+)(.*)$")
_BRANCH = re.compile(
    r"^((?:@!?U?P[0-9T]+\s+)?(?:BRA|BSSY|CALL|BREAK|WARPSYNC|JMP)\S*\s.*?)\b0x([0-9a-f]+)\s*;"
)


def code_sections(cubin: bytes) -> list[tuple[str, bytes]]:
    """(kernel name, machine code) of an ELF file's `.text.` sections."""
    table = struct.unpack_from("<Q", cubin, 0x28)[0]
    count, names_at = struct.unpack_from("<HH", cubin, 0x3C)
    headers = [struct.unpack_from("<IIQQQQ", cubin, table + 64 * n) for n in range(count)]
    names = headers[names_at][4]
    found = []
    for header in headers:
        name = cubin[names + header[0] :].partition(b"\0")[0].decode()
        if name.startswith(".text."):
            found.append((name[len(".text.") :], cubin[header[4] : header[4] + header[5]]))
    return found


def raw_architecture(arch: int) -> str:
    """What `nvdisasm -b` calls a target; from sm_90 on, Triton uses the architecture-specific variant."""
    return f"SM{arch}a" if arch >= 90 else f"SM{arch}"


def label(lines: list[str], name: str, base: int) -> str:
    """The text of one function from raw lines: addresses from 0, branch targets as labels."""
    code, targets = [], set()
    for line in lines:
        if not (found := _LINE.match(line)):
            continue
        head, address, space, text = found.groups()
        text = without_hints(text)
        if branch := _BRANCH.match(text):
            target = int(branch.group(2), 16) - base
            targets.add(target)
            text = f"{branch.group(1)}`(.L_x_{target:04x}) ;"
        code.append((int(address, 16) - base, head, space, text))
    out = [f".text.{name}:"]
    for address, head, space, text in code:
        if address in targets:
            out.append(f".L_x_{address:04x}:")
        out.append(f"{head}{address:04x}{space}{text}")
    return "\n".join(out) + "\n"


def disassemble_all(cubins: list[bytes], arch: int) -> list[str]:
    """SASS text of cubins for one architecture, in order."""
    texts: list[str] = [""] * len(cubins)
    joined, parts, position = b"", [], 0
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "code"
        for number, cubin in enumerate(cubins):
            sections = code_sections(cubin)
            if len(sections) == 1:
                name, code = sections[0]
                parts.append((number, name, position, position + len(code)))
                joined, position = joined + code, position + len(code)
            else:
                path.write_bytes(cubin)
                texts[number] = disassemble(path)
        if not parts:
            return texts
        path.write_bytes(joined)
        command = [tool("nvdisasm"), "-b", raw_architecture(arch), str(path)]
        text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    rows = [(int(m.group(2), 16), line) for line in text.splitlines() if (m := _LINE.match(line))]
    for number, name, first, last in parts:
        texts[number] = label([line for address, line in rows if first <= address < last], name, first)
    return texts
