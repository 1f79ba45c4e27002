"""Reads a disassembly: its instructions, its loops, and how many instructions of each class they hold.

How the main loop is found. Labels and branches give basic blocks; a branch to a block that dominates it
closes a loop, whose body is every block that reaches the branch without passing the loop's head. This also
holds when the compiler has moved a part of the body behind the loop's end. Among the loops, the one with the
most tensor instructions is the main loop (without any: the most FMA instructions, then the most
instructions). Where loops are nested, work in the inner one counts for both, so the inner one is chosen if it
holds at least half of the work of the outer one. Counts are static: what one pass through the whole body
issues.
"""

import re
from collections import Counter
from dataclasses import dataclass, field

from kernels.lab.compile.classes import CLASSES, SIZED, bytes_per_thread, class_of, tensor_flops

_LABEL = re.compile(r"^\s*(\.L_\w+):")
_FUNCTION = re.compile(r"^\s*\.text\.(\S+):")
_INSTRUCTION = re.compile(
    r"^\s*/\*([0-9a-f]{4,})\*/\s+(?:@(!?U?P[0-9T]+)\s+)?([A-Z][A-Z0-9_]*(?:\.[A-Za-z0-9_]+)*)\s*(.*?);"
)
_TARGET = re.compile(r"`\((\.L_\w+)\)")
_WITHOUT_SUCCESSOR = ("EXIT", "RET", "KILL")


@dataclass(frozen=True)
class Instruction:
    """One machine instruction: byte address, guard ("!P1" or ""), mnemonic, operands, a branch's label."""

    address: int
    guard: str
    mnemonic: str
    operands: str
    target: str = ""

    @property
    def opcode(self) -> str:
        return self.mnemonic.partition(".")[0]


@dataclass(frozen=True)
class Counts:
    """Static instruction counts of a piece of code, as one warp issues them.

    Attributes:
        classes: class name to instructions; every name of `classes.CLASSES` is present.
        widths: class that moves bytes to {bytes per thread: instructions}.
        opcodes: opcode to instructions.
        tensor_flops: floating-point operations of the tensor instructions, per warp.
    """

    classes: dict[str, int]
    widths: dict[str, dict[int, int]]
    opcodes: dict[str, int]
    tensor_flops: int = 0

    @property
    def total(self) -> int:
        return sum(self.classes.values())

    def __getitem__(self, name: str) -> int:
        return self.classes[name]

    def bytes_of(self, name: str) -> int:
        """Bytes a warp moves with the loads or stores of a class: 32 threads times the width."""
        return sum(32 * width * count for width, count in self.widths.get(name, {}).items())


@dataclass(frozen=True)
class Loop:
    """One loop: addresses of its first and last instruction, nesting depth (1 is outermost), counts."""

    first: int
    last: int
    depth: int
    counts: Counts
    blocks: frozenset = field(default=frozenset(), repr=False, compare=False)


def count(instructions) -> Counts:
    """Count instructions by class, width and opcode."""
    classes = dict.fromkeys(CLASSES, 0)
    widths: dict[str, Counter] = {}
    opcodes: Counter = Counter()
    flops = 0
    for instruction in instructions:
        name = class_of(instruction.mnemonic)
        classes[name] += 1
        opcodes[instruction.opcode] += 1
        if name in SIZED:
            widths.setdefault(name, Counter())[bytes_per_thread(instruction.mnemonic)] += 1
        elif name == "tensor":
            flops += tensor_flops(instruction.mnemonic)
    return Counts(
        classes, {n: dict(sorted(w.items())) for n, w in widths.items()}, dict(sorted(opcodes.items())), flops
    )


def parse(text: str) -> tuple[list[Instruction], dict[str, int]]:
    """Instructions of the first function in `nvdisasm -c` output, and label to index of its instruction.

    The padding behind the code (a branch to itself, then NOPs) is left out.
    """
    instructions: list[Instruction] = []
    labels: dict[str, int] = {}
    functions = 0
    for line in text.splitlines():
        if _FUNCTION.match(line):
            functions += 1
            if functions > 1:
                break
        if label := _LABEL.match(line):
            labels[label.group(1)] = len(instructions)
        elif found := _INSTRUCTION.match(line):
            address, guard, mnemonic, operands = found.groups()
            target = _TARGET.search(operands)
            instructions.append(
                Instruction(
                    int(address, 16),
                    guard or "",
                    mnemonic,
                    operands.strip(),
                    target.group(1) if target else "",
                )
            )
    for index in range(len(instructions) - 1, -1, -1):
        last = instructions[index]
        if last.opcode == "BRA" and labels.get(last.target) == index:
            return instructions[:index], labels
        if last.opcode != "NOP":
            break
    return instructions, labels


def _blocks(instructions, labels) -> tuple[list[range], list[list[int]]]:
    starts = {0, *(i for i in labels.values() if i < len(instructions))}
    for index, instruction in enumerate(instructions):
        if instruction.opcode in ("BRA", "JMP", "BRX", *_WITHOUT_SUCCESSOR):
            starts.add(index + 1)
    order = sorted(s for s in starts if s < len(instructions))
    blocks = [range(a, b) for a, b in zip(order, [*order[1:], len(instructions)], strict=True)]
    block_at = {block.start: number for number, block in enumerate(blocks)}
    successors = []
    for number, block in enumerate(blocks):
        last = instructions[block[-1]]
        following = []
        if last.opcode in ("BRA", "JMP") and labels.get(last.target, len(instructions)) < len(instructions):
            following.append(block_at[labels[last.target]])
        # A branch may depend on a uniform predicate operand instead of a guard: "BRA.U !UP0, `(.L_x_1)".
        condition = last.operands.partition("`")[0].replace("PT", "")
        always = (
            not last.guard
            and "P" not in condition
            and ".DIV" not in last.mnemonic
            and ".CONV" not in last.mnemonic
        )
        leaves = last.opcode in ("BRA", "JMP", "BRX", *_WITHOUT_SUCCESSOR) and always
        if not leaves and number + 1 < len(blocks):
            following.append(number + 1)
        successors.append(following)
    return blocks, successors


def _dominators(successors: list[list[int]]) -> list[set[int]]:
    predecessors: list[list[int]] = [[] for _ in successors]
    for block, following in enumerate(successors):
        for successor in following:
            predecessors[successor].append(block)
    everything = set(range(len(successors)))
    dominators = [{0} if block == 0 else set(everything) for block in everything]
    changed = True
    while changed:
        changed = False
        for block in range(1, len(successors)):
            incoming = [dominators[p] for p in predecessors[block]]
            new = {block} | (set.intersection(*incoming) if incoming else set())
            if new != dominators[block]:
                dominators[block], changed = new, True
    return dominators


def loops(instructions: list[Instruction], labels: dict[str, int]) -> list[Loop]:
    """All natural loops, in order of address; loops with one head are one loop."""
    if not instructions:
        return []
    blocks, successors = _blocks(instructions, labels)
    dominators = _dominators(successors)
    predecessors: list[list[int]] = [[] for _ in blocks]
    for block, following in enumerate(successors):
        for successor in following:
            predecessors[successor].append(block)
    bodies: dict[int, set[int]] = {}
    for tail, following in enumerate(successors):
        for head in following:
            if head in dominators[tail]:
                body, pending = bodies.setdefault(head, {head}), [tail]
                while pending:
                    block = pending.pop()
                    if block not in body:
                        body.add(block)
                        pending.extend(predecessors[block])
    found = []
    for head, body in sorted(bodies.items()):
        depth = sum(1 for other in bodies.values() if body <= other)
        inside = [instructions[i] for block in sorted(body) for i in blocks[block]]
        first, last = instructions[blocks[head].start].address, max(i.address for i in inside)
        found.append(Loop(first, last, depth, count(inside), frozenset(body)))
    return found


def body(instructions: list[Instruction], labels: dict[str, int], loop: Loop) -> list[Instruction]:
    """The instructions of one of `loops`, from its head on; blocks before the head come last."""
    blocks, _ = _blocks(instructions, labels)
    inside = [instructions[i] for block in sorted(loop.blocks) for i in blocks[block]]
    return [i for i in inside if i.address >= loop.first] + [i for i in inside if i.address < loop.first]


def main_loop(found: list[Loop]) -> Loop | None:
    """The loop that does the work, by the rule in this module's docstring; None without loops."""
    kinds = ("tensor", "fma")
    work = next((k for k in kinds if any(loop.counts[k] for loop in found)), None)

    def amount(loop: Loop) -> int:
        return loop.counts[work] if work else loop.counts.total

    chosen = max(found, key=amount, default=None)
    while chosen is not None:
        inner = [o for o in found if o.blocks < chosen.blocks and 2 * amount(o) >= amount(chosen)]
        if not inner:
            return chosen
        chosen = max(inner, key=lambda loop: (amount(loop), len(loop.blocks)))
    return None
