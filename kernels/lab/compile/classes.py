"""Sorts machine instructions into classes: which pipe of the multiprocessor an instruction keeps busy.

The opcode names are those that `nvdisasm` prints (SASS). A name that is in no table below lands in "other",
which a test keeps empty for the kernels of this book.
"""

import re

# Class to opcodes, the part of the mnemonic before the first dot.
_OPCODES = {
    "tensor": "HMMA IMMA BMMA DMMA QMMA OMMA HGMMA QGMMA IGMMA BGMMA UTCHMMA UTCQMMA UTCIMMA UTCOMMA",
    "fma": (
        "FFMA FADD FMUL FFMA2 FADD2 FMUL2 FFMA32I FADD32I FMUL32I HFMA2 HADD2 HMUL2 HFMA2_MMA DFMA DADD DMUL"
    ),
    "conversion": "F2F F2FP F2I F2IP I2F I2FP I2I I2IP FRND UI2F UI2FP UF2F UF2I UF2FP",
    "integer": (
        "IMAD IADD IADD3 IADD32I VIADD VIADDMNMX LEA LOP LOP3 SHF SHL SHR PRMT SGXT IABS BMSK FLO POPC "
        "BREV IDP IDP4A VABSDIFF VABSDIFF4 IMUL LOP32I SCALE"
    ),
    "compare": (
        "ISETP FSETP HSETP2 DSETP ICMP FSET HSET2 FSEL SEL FMNMX FMNMX3 IMNMX VIMNMX VIMNMX3 HMNMX2 "
        "VHMNMX PLOP3 PSETP FCHK FSETP2"
    ),
    "move": "MOV MOV32I MOVM CS2R S2R P2R R2P B2R R2B LEPC GETLMEMBASE CS2UR",
    "uniform": (
        "R2UR R2P2UR S2UR REDUX CREDUX UMOV ULEA ULOP ULOP3 USHF USHL USHR UIADD3 UIMAD UISETP USEL UPRMT "
        "USGXT UBMSK UFLO UPOPC UBREV UPLOP3 UP2UR UR2UP UPSETP UIABS UVIADD UVIMNMX UCGABAR_ARV VOTEU "
        "UFFMA UFADD UFMUL UFSETP UFSEL UFMNMX UIADD3X UIMNMX"
    ),
    "global_load": "LDG LD LDGMC",
    "global_store": "STG ST",
    "async_copy": "LDGSTS",
    "bulk_copy": "UTMALDG UTMASTG UTMAREDG UTMAPF UTMACCTL UTMACMDFLUSH UBLKCP UBLKPF UBLKRED",
    "shared_load": "LDS LDSM",
    "shared_store": "STS STSM STAS",
    "local_load": "LDL",
    "local_store": "STL",
    "constant": "LDC LDCU ULDC",
    "atomic": "ATOM ATOMG ATOMS RED REDG REDS",
    "tensor_memory": "LDTM STTM LDT STT UTCBAR UTCCP UTCSHIFT UTCATOMSWS",
    "special": "MUFU",
    "shuffle": "SHFL VOTE MATCH",
    "barrier": (
        "BAR DEPBAR LDGDEPBAR MEMBAR FENCE SYNCS ERRBAR CCTL CCTLL UCCTL WARPGROUP ARRIVES ACQBULK "
        "ACQSHMINIT CGAERRBAR UCGABAR_WAIT ENDCOLLECTIVE WARPGROUPSET PREEXIT"
    ),
    "control": (
        "BRA BRX JMP JMX EXIT RET CALL BSSY BSYNC BREAK WARPSYNC YIELD NOP NANOSLEEP KILL BPT RTT PLOP "
        "ELECT BMOV BRXU JMXU WARPSYNC_COLLECTIVE COLLECTIVE USETMAXREG"
    ),
}

CLASSES = (*_OPCODES, "other")

_CLASS_OF = {opcode: name for name, opcodes in _OPCODES.items() for opcode in opcodes.split()}

# Classes whose instructions move bytes, so that their width per thread matters.
SIZED = (
    "global_load",
    "global_store",
    "async_copy",
    "shared_load",
    "shared_store",
    "local_load",
    "local_store",
)

# Tensor opcodes that exist only on some architectures: warpgroup MMA (sm_90) and tensor memory (sm_100).
WARPGROUP_OPCODES = frozenset(["HGMMA", "QGMMA", "IGMMA", "BGMMA", "WARPGROUP"])
TCGEN_OPCODES = frozenset(o for o in _CLASS_OF if o.startswith("UTC") or _CLASS_OF[o] == "tensor_memory")


def class_of(mnemonic: str) -> str:
    """The class of an instruction, from its full mnemonic such as "LDG.E.128".

    Two mnemonics do another class's work: `IMAD.MOV` copies a register, and `HADD2.F32` widens a half to
    float32.
    """
    opcode, _, modifiers = mnemonic.partition(".")
    if opcode == "IMAD" and modifiers.startswith("MOV"):
        return "move"
    if opcode == "HADD2" and modifiers.startswith("F32"):
        return "conversion"
    return _CLASS_OF.get(opcode, "other")


def bytes_per_thread(mnemonic: str) -> int:
    """Bytes that one thread moves in a load or store: 16 for "LDG.E.128", 4 where no width is printed.

    `LDSM.16.M88.4` and `STSM` move four 8x8 matrices of 16-bit values a warp: 512 bytes, 16 a thread.
    """
    opcode, *modifiers = mnemonic.split(".")
    if opcode in ("LDSM", "STSM"):
        return 4 * (int(modifiers[-1]) if modifiers[-1] in ("2", "4") else 1)
    for modifier in modifiers:
        if modifier in ("256", "128", "64"):
            return int(modifier) // 8
        if modifier in ("U16", "S16", "16"):
            return 2
        if modifier in ("U8", "S8", "8"):
            return 1
    return 4


def tensor_flops(mnemonic: str) -> int:
    """Floating-point operations of one tensor instruction: 2*M*N*K, per warp (HGMMA: a warp's quarter of it).

    Shapes are printed as in "HMMA.16816.F32.BF16" (M=16, N=8, K=16) and "HGMMA.64x128x16.F32.BF16".
    """
    if spaced := re.search(r"\.(\d+)x(\d+)x(\d+)", mnemonic):
        m, n, k = map(int, spaced.groups())
        return 2 * m * n * k // 4
    if packed := re.search(r"\.(16)(8)(\d+)(?:\.|$)", mnemonic):
        m, n, k = map(int, packed.groups())
        return 2 * m * n * k
    return 0
