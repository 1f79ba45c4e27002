"""The reader of disassemblies, on text that was written by hand, so that the right answer is known."""

import pytest

from kernels.lab.compile import classes, sass

HEAD = ".text.kernel:\n"


def _text(*lines: str) -> str:
    """Number the instructions as nvdisasm does; lines that end in a colon are labels."""
    out, address = [HEAD], 0
    for line in lines:
        if line.endswith(":"):
            out.append(line)
        else:
            out.append(f"        /*{address:04x}*/                   {line} ;")
            address += 16
    return "\n".join(out)


def _read(*lines):
    instructions, labels = sass.parse(_text(*lines))
    return instructions, sass.loops(instructions, labels)


@pytest.mark.parametrize(
    ("mnemonic", "name"),
    [
        ("HMMA.16816.F32.BF16", "tensor"),
        ("QMMA.16832.F32.E4M3.E4M3", "tensor"),
        ("HGMMA.64x64x16.F32.BF16", "tensor"),
        ("FFMA", "fma"),
        ("HFMA2.BF16_V2", "fma"),
        ("HADD2.F32", "conversion"),
        ("F2FP.BF16.F32.PACK_AB", "conversion"),
        ("IMAD.MOV.U32", "move"),
        ("IMAD.WIDE", "integer"),
        ("PRMT", "integer"),
        ("LDG.E.128", "global_load"),
        ("LDGSTS.E.BYPASS.128", "async_copy"),
        ("LDSM.16.M88.4", "shared_load"),
        ("STL.64", "local_store"),
        ("MUFU.EX2", "special"),
        ("UTMALDG.2D", "bulk_copy"),
        ("USETMAXREG.TRY_ALLOC.CTAPOOL", "control"),
        ("ELECT", "control"),
        ("SYNCS.PHASECHK.TRANS64.TRYWAIT", "barrier"),
        ("FENCE.VIEW.ASYNC.S", "barrier"),
        ("NEWOP", "other"),
    ],
)
def test_a_mnemonic_lands_in_its_class(mnemonic, name):
    assert classes.class_of(mnemonic) == name


@pytest.mark.parametrize(
    ("mnemonic", "width"),
    [
        ("LDG.E.128", 16),
        ("LDG.E.64.CONSTANT", 8),
        ("LDG.E.U8", 1),
        ("LDG.E.U16", 2),
        ("LDG.E", 4),
        ("STS.128", 16),
        ("LDSM.16.M88.4", 16),
        ("LDSM.16.MT88.2", 8),
        ("LDSM.16.M88", 4),
        ("LDG.E.ENL2.256", 32),
    ],
)
def test_the_width_of_an_access_is_read_from_its_mnemonic(mnemonic, width):
    assert classes.bytes_per_thread(mnemonic) == width


def test_tensor_flops_come_from_the_printed_shape():
    assert classes.tensor_flops("HMMA.16816.F32.BF16") == 2 * 16 * 8 * 16
    assert classes.tensor_flops("QMMA.16832.F32.E4M3.E4M3") == 2 * 16 * 8 * 32
    assert classes.tensor_flops("HGMMA.64x128x16.F32.BF16") == 2 * 64 * 128 * 16 // 4


def test_a_loop_is_what_a_backward_branch_encloses():
    instructions, found = _read(
        "MOV R1, R2", ".L_x_0:", "FFMA R1, R1, R1, R1", "LDG.E.64 R2, [R4]", "@P0 BRA `(.L_x_0)", "EXIT"
    )
    assert len(instructions) == 5
    assert [(loop.first, loop.last, loop.depth) for loop in found] == [(16, 48, 1)]
    assert (found[0].counts["fma"], found[0].counts["control"], found[0].counts.total) == (1, 1, 3)
    assert found[0].counts.widths == {"global_load": {8: 1}}
    assert found[0].counts.bytes_of("global_load") == 256


def test_a_body_that_was_moved_behind_the_loop_still_belongs_to_it():
    _, found = _read(
        ".L_x_0:",
        "FFMA R1, R1, R1, R1",
        "@P1 BRA `(.L_x_2)",
        ".L_x_1:",
        "@P0 BRA `(.L_x_0)",
        "FADD R9, R9, R9",
        "EXIT",
        ".L_x_2:",
        "MUFU.EX2 R1, R1",
        "BRA `(.L_x_1)",
    )
    assert len(found) == 1
    counts = found[0].counts
    assert (counts["special"], counts["fma"], counts.total) == (1, 1, 5), "the FADD after the loop is outside"


def test_the_inner_loop_is_the_main_loop_when_it_holds_the_work():
    lines = [
        ".L_x_0:",
        "FADD R1, R1, R1",
        ".L_x_1:",
        "FFMA R1, R1, R1, R1",
        "FFMA R1, R1, R1, R1",
        "@P0 BRA `(.L_x_1)",
        "@P1 BRA `(.L_x_0)",
        "EXIT",
    ]
    _, found = _read(*lines)
    assert sorted(loop.depth for loop in found) == [1, 2]
    assert sass.main_loop(found).depth == 2


def test_the_outer_loop_is_the_main_loop_when_the_inner_one_is_small():
    lines = [
        ".L_x_0:",
        *["HMMA.16816.F32.BF16 R1, R1, R1, R1"] * 4,
        ".L_x_1:",
        "HMMA.16816.F32.BF16 R1, R1, R1, R1",
        "@P0 BRA `(.L_x_1)",
        "@P1 BRA `(.L_x_0)",
        "EXIT",
    ]
    _, found = _read(*lines)
    assert sass.main_loop(found).counts["tensor"] == 5


def test_a_loop_with_a_tensor_instruction_beats_one_with_more_fma():
    lines = [
        ".L_x_0:",
        *["FFMA R1, R1, R1, R1"] * 9,
        "@P0 BRA `(.L_x_0)",
        ".L_x_1:",
        "HMMA.16816.F32.BF16 R1, R1, R1, R1",
        "@P0 BRA `(.L_x_1)",
        "EXIT",
    ]
    _, found = _read(*lines)
    assert sass.main_loop(found).counts["tensor"] == 1


def test_padding_and_its_endless_branch_are_no_code_and_no_loop():
    instructions, found = _read("FADD R1, R1, R1", "EXIT", ".L_x_0:", "BRA `(.L_x_0)", "NOP", "NOP")
    assert [i.opcode for i in instructions] == ["FADD", "EXIT"]
    assert found == [] and sass.main_loop(found) is None


def test_a_conditional_branch_also_falls_through():
    for branch in ("BRA.U !UP0, `(.L_x_1)", "BRA.DIV UR4, `(.L_x_1)", "@!P0 BRA `(.L_x_1)"):
        _, found = _read(
            ".L_x_0:", "FADD R1, R1, R1", branch, "FMUL R1, R1, R1", ".L_x_1:", "@P0 BRA `(.L_x_0)", "EXIT"
        )
        assert found[0].counts["fma"] == 2, branch


def test_every_instruction_is_counted_once():
    instructions, _ = _read("MOV R1, R2", "FOO.BAR R1", "@!PT BRA `(.L_x_9)", "EXIT")
    counts = sass.count(instructions)
    assert counts.total == len(instructions) == 4
    assert counts["other"] == 1


def test_scheduling_hints_of_older_disassemblers_are_left_out():
    from kernels.lab.compile.disassemble import label

    lines = [
        "        /*0000*/                   LDC R1, c[0x0][0x37c]               &req={3,2} &wr=0x0  ?trans8;",
        "        /*0010*/                   BRA.U !UP0, 0x0                                  ?WAIT5_END_GROUP;",
    ]
    text = label(lines, "kernel", 0)
    assert "?" not in text and "&" not in text
    instructions, labels = sass.parse(text)
    assert [i.opcode.split(".")[0] for i in instructions] == ["LDC", "BRA"]
    assert sass.loops(instructions, labels), "the backward branch is a loop"
