"""What came out of the compiler."""

from dataclasses import asdict, dataclass, field
from pathlib import Path

from kernels.lab.compile.classes import CLASSES
from kernels.lab.compile.request import cache_root
from kernels.lab.compile.sass import Counts, Loop

_NONE = Counts(dict.fromkeys(CLASSES, 0), {}, {})


@dataclass(frozen=True)
class Compiled:
    """One kernel as machine code, or the reason why there is none.

    Attributes:
        op, impl, tile, target, options: what was asked for.
        name: the kernel's name. num_warps, num_stages: its launch options.
        shared_bytes: shared memory of a block, as the launch asks for it (without the 1,024 bytes that the
            hardware reserves).
        registers: 32-bit registers a thread, as it is launched. max_threads: threads a block, those of
            warps that the kernel adds to num_warps included.
        stack_bytes: local memory a thread, from `cuobjdump -res-usage`.
        spill_store_bytes, spill_load_bytes: bytes a thread, static, from `ptxas -v`.
        counts: instructions of the whole kernel; `main_loop`: of its main loop, None without a loop.
        loops: all loops, for kernels with one loop per cache.
        error: None, or why compilation failed; then the numbers above are None.
        key: name of the files with PTX and SASS in the cache. seconds: time to compile, not to read the
            cache.
    """

    op: str
    impl: str
    tile: dict
    target: str
    options: dict
    name: str = ""
    num_warps: int | None = None
    num_stages: int | None = None
    shared_bytes: int | None = None
    registers: int | None = None
    max_threads: int | None = None
    stack_bytes: int | None = None
    spill_store_bytes: int | None = None
    spill_load_bytes: int | None = None
    counts: Counts = _NONE
    main_loop: Loop | None = None
    loops: tuple[Loop, ...] = ()
    error: str | None = None
    key: str = ""
    seconds: float = 0.0
    triton: str = ""
    from_cache: bool = field(default=False, compare=False)

    @property
    def ok(self) -> bool:
        return self.error is None

    @property
    def spill_bytes(self) -> int | None:
        """Bytes a thread stores and loads because registers ran out (static count, both directions)."""
        return None if self.spill_store_bytes is None else self.spill_store_bytes + self.spill_load_bytes

    @property
    def block_h(self) -> int | None:
        return self.tile.get("block_h")

    @property
    def block_t(self) -> int | None:
        return self.tile.get("block_t")

    @property
    def producer_warps(self) -> int:
        """Warps of a block that run `producer_loop` instead of the main loop; 0 where all do the same."""
        return self.tile.get("producer_warps", 0)

    @property
    def main_warps(self) -> int:
        """Warps of a block that run the main loop."""
        return self.max_threads // 32 - self.producer_warps

    @property
    def producer_loop(self) -> Loop | None:
        """The loop of the warps that only fetch: of those without tensor instructions the one that loads most."""
        if not self.producer_warps:
            return None
        fetching = [loop for loop in self.loops if loop.counts["global_load"] and not loop.counts["tensor"]]
        return max(fetching, key=lambda loop: loop.counts.bytes_of("global_load"), default=None)

    def _file(self, suffix: str) -> Path:
        return cache_root() / self.key[:2] / f"{self.key}.{suffix}"

    @property
    def ptx_path(self) -> Path:
        return self._file("ptx")

    @property
    def sass_path(self) -> Path:
        return self._file("sass")

    @property
    def ptx(self) -> str:
        """The PTX text; "" after an error."""
        return self.ptx_path.read_text() if self.ok else ""

    @property
    def sass(self) -> str:
        """The disassembly; "" after an error."""
        return self.sass_path.read_text() if self.ok else ""

    def as_json(self) -> dict:
        """Plain data for files: everything but paths, with the tile's numbers also at the top level."""
        data = {
            k: v for k, v in asdict(self).items() if k not in ("counts", "main_loop", "loops", "from_cache")
        }
        data |= {"spill_bytes": self.spill_bytes, "instructions": _counts_json(self.counts)}
        data["main_loop"] = _loop_json(self.main_loop) if self.main_loop else None
        data["loops"] = [_loop_json(loop) for loop in self.loops]
        return data

    def as_row(self) -> dict:
        """One flat row for a table: the tile, resources, and main-loop counts as `loop_<class>`."""
        names = (
            "op",
            "impl",
            "target",
            "num_warps",
            "num_stages",
            "shared_bytes",
            "registers",
            "max_threads",
            "stack_bytes",
            "spill_bytes",
            "error",
        )
        row = {name: getattr(self, name) for name in names} | self.tile | dict(self.options)
        loop = self.main_loop.counts if self.main_loop else _NONE
        return row | {"instructions": self.counts.total} | {f"loop_{name}": loop[name] for name in CLASSES}


def _counts_json(counts: Counts) -> dict:
    return {
        "total": counts.total,
        "classes": counts.classes,
        "tensor_flops": counts.tensor_flops,
        "widths": {n: {str(k): v for k, v in w.items()} for n, w in counts.widths.items()},
        "opcodes": counts.opcodes,
    }


def _loop_json(loop: Loop) -> dict:
    return {"first": loop.first, "last": loop.last, "depth": loop.depth} | _counts_json(loop.counts)


def _counts_of(data: dict) -> Counts:
    widths = {n: {int(k): v for k, v in w.items()} for n, w in data["widths"].items()}
    return Counts(data["classes"], widths, data["opcodes"], data["tensor_flops"])


def from_json(data: dict) -> Compiled:
    """The inverse of `Compiled.as_json`."""
    data = {k: v for k, v in data.items() if k != "spill_bytes"}
    counts = _counts_of(data.pop("instructions"))
    loops = tuple(Loop(d["first"], d["last"], d["depth"], _counts_of(d)) for d in data.pop("loops"))
    main = data.pop("main_loop")
    main = Loop(main["first"], main["last"], main["depth"], _counts_of(main)) if main else None
    return Compiled(**data, counts=counts, loops=loops, main_loop=main)
