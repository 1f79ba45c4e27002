"""What a run's sparse-MLA calls launched: kernels, grids and arguments, found out without a GPU.

Host code plans a call and turns the plan into launches. Here it does so for tensors without memory, and stand-ins
for the kernels note what they are started with. A record keeps a short hash of that for every call that it timed;
whether the call would be launched the same way today is then one comparison, however the host code has changed.
Rungs in Gluon are not imported: under the interpreter there are none.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import pandas as pd

from kernels.lab.records import place, source
from kernels.lab.records.schema import blank

PACKAGE = "kernels.sparse_mla."
TILE = ("block_h", "block_t", "num_warps", "num_stages")


@dataclass(frozen=True)
class Call:
    """A call of `sparse_mla_decode` as an experiment makes it.

    topk, page, length: candidates a row, tokens a page, whether rows have lengths; extra_*: of the second cache.
    splits, tile, release: what the caller gave; 0 and '' leave it to the planner. tile: a `Tile`'s fields, joined by
    'x'. invariant: planned without a look at the batch. in_turn: without overlapped launches.
    """

    impl: str
    tile_class: str = "native"
    batch: int = 1
    heads: int = 64
    topk: int = 512
    page: int = 64
    length: bool = False
    extra: int = 0
    extra_page: int = 64
    extra_length: bool = False
    splits: int = 0
    tile: str = ""
    release: str = "start"
    scratch: str = "bfloat16"
    invariant: bool = False
    in_turn: bool = False

    def __str__(self) -> str:
        """The call in words, what is usual left out: 'split_k, batch 4, tile_class sm120'."""
        words = [self.impl]
        for field in fields(self)[1:]:
            value = getattr(self, field.name)
            if value != field.default or field.name == "batch":
                words.append(f"{field.name} {value}")
        return ", ".join(words)

    @classmethod
    def read(cls, text: str) -> Call:
        """The call that `str` has written."""
        impl, *words = text.split(", ")
        given = dict(word.split(" ", 1) for word in words)
        kinds = {field.name: type(field.default) for field in fields(cls)[1:]}
        return cls(impl, **{k: v == "True" if kinds[k] is bool else kinds[k](v) for k, v in given.items()})


def of_record(record) -> dict[str, str]:
    """Every sparse-MLA call that a record timed -> what it launches with the host code at hand."""
    launcher = Launcher(record.info["device"])
    return {str(call): launcher.launches(call) for call in dict.fromkeys(call for _, call in calls(record))}


def kernels_of(launches: Iterable[str]) -> set[str]:
    """The names of the kernels in values of `of_record`."""
    return {name for text in launches for name in text.split(" ")[0].split("+")}


def calls(record) -> Iterator[tuple[dict[str, Any], Call]]:
    """A record's good rows, each with the calls behind it; FlashMLA's are not ours."""
    from kernels.lab.experiments.catalogue import CATALOGUE
    from kernels.lab.variants.plan import VARIANTS

    points: dict[tuple, list] = {}
    for name in record.info["experiments"]:
        for point in CATALOGUE[name].points(record.info["profile"]) if name in CATALOGUE else ():
            points.setdefault((name, *_key(point.row())), []).append(point)
    for table in ("measurements", "counters"):
        for row in _good(record.table(table)):
            if row["op"] == "decode_step":
                yield from ((row, call) for call in _of_step(row))
            elif row["op"] == "sparse_mla_decode" and row["impl"] != "flash_mla":
                known = points.get((row["experiment"], *_key(row)), [])
                yield from ((row, call) for call in _of_row(row, known, VARIANTS))


def _good(df: pd.DataFrame) -> Iterator[dict[str, Any]]:
    for row in df[df["status"] == "ok"].to_dict("records"):
        yield {name: None if blank(value) else value for name, value in row.items()}


def _key(row: dict[str, Any]) -> tuple:
    names = ("impl", "tile_class", "batch", "heads", "topk", "swa_tokens", "page_size", "context")
    return tuple(row.get(name) or None for name in names)


def _of_row(row: dict[str, Any], points: list, variants) -> Iterator[Call]:
    """A row's calls: what its point in the catalogue gave is given, and the rest was left to the planner.

    Rows of experiments with code of their own, and of points that are gone, count as given what they hold, but for
    tiles of rung `staged`, which the columns do not tell whole.
    """
    label, splits = row["impl"], row.get("num_splits") or 0
    impl = label.removesuffix("_fp32").removesuffix("_in_turn").removesuffix("_fixed")
    tile = tuple(row.get(name) for name in TILE)
    shape = _shape(row) | {"scratch": "float32" if label.endswith("_fp32") else "bfloat16"}
    if (
        impl in variants
    ):  # launched by the laboratory with the arguments of rung split_k, then the shipped combine
        yield Call("split_k", **shape, splits=splits, tile=_tile_text(tile))
        return
    if row["experiment"] == "per_head_split":  # parts of a row as rows of their own
        yield Call(impl, **shape | {"batch": shape["batch"] * splits, "topk": shape["topk"] // splits})
        return
    if row["experiment"] == "batch_invariance":  # one split: rung mma in the place of split_k
        yield Call(impl, **shape, invariant=label.endswith("_fixed"))
        if splits == 1:
            yield Call("mma", **shape)
        return
    for point in points:
        if point.num_splits in (None, splits) and (point.tile is None or point.tile[:4] == tile):
            given = {"splits": point.num_splits or 0}
            if point.tile is not None:
                given |= {"tile": _tile_text(point.tile), "release": point.release}
            yield Call(impl, **shape, **given)
            return
    given = {"splits": splits} if impl in ("split_k", "staged") else {}
    yield Call(impl, **shape, **given, in_turn=label.endswith("_in_turn"))


def _shape(row: dict[str, Any]) -> dict[str, Any]:
    topk, page, live = row["topk"], row.get("page_size") or 64, row.get("context")
    length = live is not None and live < topk
    shape = {"tile_class": row["tile_class"], "batch": row["batch"], "heads": row["heads"]}
    if not row.get("swa_tokens"):
        return shape | {"topk": topk, "page": page, "length": length}
    window = {"topk": row["swa_tokens"], "page": 128}
    return shape | window | {"extra": topk, "extra_page": page, "extra_length": length}


def _tile_text(tile: tuple) -> str:
    return "x".join(str(int(value)) for value in tile)


def _of_step(row: dict[str, Any]) -> Iterator[Call]:
    """The calls of a decode step: a layer of each kind, by the rung of its stage."""
    from kernels.decode_step.shapes import SWA_PAGE, flash
    from kernels.decode_step.stages import stage_named
    from kernels.decode_step.state import EXTRA_PAGE

    window = {"topk": row["swa_tokens"], "page": SWA_PAGE, "length": True}
    shape = {"batch": row["batch"], "heads": row["heads"]} | window
    rung = stage_named(row["stage"]).attention
    yield Call(rung, **shape)
    for kind, width in (("c4", row["topk"]), ("c128", flash().c128_width(row["max_context"]))):
        yield Call(rung, **shape, extra=width, extra_page=EXTRA_PAGE[kind], extra_length=True)


class Launcher:
    """The host code at hand: copies of the modules `api` and `launch`, for a device that need not be there.

    Stand-ins take the kernels' places. device: as in run.json.
    """

    def __init__(self, device: dict[str, Any]):
        from kernels.sparse_mla import plan as planning

        self.capability = tuple(int(part) for part in device["capability"].split("."))
        known = planning.Device(device["sm_count"], self.capability, device["smem_optin_bytes"])
        self.api, self.module = _copy_of("api"), _copy_of("launch")
        self.api.planning = SimpleNamespace(**vars(planning) | {"device_of": lambda tensor: known})
        self.api.why_not_staged = lambda inputs: None
        self.seen: list[tuple] = []
        # Modules that are imported at the first launch of their kernel
        self.late: dict[str, ModuleType] = {}
        for name, module in kernel_modules().items():
            place_of = self.module
            if not hasattr(place_of, name):
                place_of = self.late.setdefault(PACKAGE + module, ModuleType(PACKAGE + module))
            setattr(place_of, name, _StandIn(name, self.seen))

    def launches(self, call: Call) -> str:
        """Its kernels and a short hash of their grids and arguments: 'mma_kernel 0123456789ab'.

        Raises what the host code raises for a call that it does not accept any more.
        """
        import torch

        self.seen.clear()
        self.module.can_overlap = lambda tensor: not call.in_turn and self.capability >= (9, 0)
        self.module.architecture = lambda tensor: 10 * self.capability[0] + self.capability[1]
        self.module.in_pairs = lambda kernel, grid, arguments, options: kernel[grid](
            **arguments, **options, pairs=2
        )
        inputs = _inputs(self.module, call)
        plan = self.plan(call, inputs)
        out, lse = torch.empty_like(inputs.q), _meta(call.batch, call.heads, dtype=torch.float32)
        scratch = getattr(torch, call.scratch)
        size = self.api.planning.workspace_bytes(call.batch, call.heads, plan.scratch_splits, scratch)
        with mock.patch.dict(sys.modules, self.late):
            self.module.run(inputs, plan, out, lse, _meta(size, dtype=torch.uint8), scratch)
        digest = hashlib.sha256(repr(self.seen).encode()).hexdigest()[:12]
        return f"{'+'.join(name for name, *_ in self.seen)} {digest}"

    def plan(self, call: Call, inputs=None):
        """The call's `Plan`: what it gives, and the rest as the front door has it planned."""
        inputs = inputs or _inputs(self.module, call)
        plan = self.api.plan_call(inputs, call.impl, call.splits or None, call.invariant, call.tile_class)
        if not call.tile:
            return plan
        planning = self.api.planning
        tile = type(plan.tile)(*(int(part) for part in call.tile.split("x")))
        splits = plan.num_splits if call.impl in planning.SPLITTING else 1
        return planning.Plan(call.impl, tile, splits, call.release)


def _copy_of(module: str) -> ModuleType:
    """A module of sparse_mla, executed again under another name."""
    path = place.root() / "kernels" / "sparse_mla" / f"{module}.py"
    description = importlib.util.spec_from_file_location(f"kernels_lab_{module}", path)
    copy = importlib.util.module_from_spec(description)
    description.loader.exec_module(copy)
    return copy


def _meta(*shape: int, dtype):
    import torch

    return torch.empty(shape, dtype=dtype, device="meta")


def _inputs(module: ModuleType, call: Call):
    """The call's checked inputs, without memory; caches as the laboratory and the decode step lay them out."""
    import torch

    from kernels.sparse_mla.signatures import candidates

    extra = candidates(call.batch, call.extra, call.extra_page, call.extra_length) if call.extra else None
    q = _meta(call.batch, call.heads, 512, dtype=torch.bfloat16)
    sink = _meta(call.heads, dtype=torch.float32)
    return module.Inputs(q, candidates(call.batch, call.topk, call.page, call.length), extra, sink, 512**-0.5)


class _StandIn:
    """Stands for a kernel and notes its launches: name, grid and arguments, tensors by type and shape."""

    def __init__(self, name: str, seen: list[tuple]):
        self.name, self.seen = name, seen

    def __getitem__(self, grid):
        def start(**arguments):
            given = {name: _described(value) for name, value in sorted(arguments.items())}
            self.seen.append((self.name, grid, given))

        return start


def _described(value: Any) -> str:
    return f"{value.dtype} {tuple(value.shape)}" if hasattr(value, "dtype") else repr(value)


def kernel_modules() -> dict[str, str]:
    """Kernel -> the module of sparse_mla that `launch` imports it from."""
    return {
        alias.name: node.module.removeprefix(PACKAGE)
        for node in ast.walk(ast.parse((place.root() / "kernels" / "sparse_mla" / "launch.py").read_bytes()))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(PACKAGE)
        for alias in node.names
        if alias.name.endswith("_kernel")
    }


def at_commit(commit: str, folder: Path) -> dict[str, str] | None:
    """`of_record` with the host code of a commit, in a process of its own; None where that does not work out.

    folder: the record's.
    """
    files = source.read_at(commit)
    if files is None:
        return None
    with tempfile.TemporaryDirectory() as there:
        kernels = Path(there) / "kernels"
        shutil.copytree(place.root() / "kernels", kernels, ignore=shutil.ignore_patterns("__pycache__"))
        for package in source.TIMED_PACKAGES:
            shutil.rmtree(kernels / package)
        for name, text in files.items():
            (kernels / name).parent.mkdir(parents=True, exist_ok=True)
            (kernels / name).write_bytes(text)
        done = subprocess.run(
            [sys.executable, "-m", "kernels.lab.records.launches", str(folder.resolve())],
            cwd=there, env=os.environ | {"PYTHONPATH": there}, capture_output=True, text=True,
        )  # fmt: skip
    return json.loads(done.stdout) if done.returncode == 0 else None


if __name__ == "__main__":
    from kernels.lab.records import store

    given = Path(sys.argv[1])
    print(json.dumps(of_record(store.Record(given, store.read_run(given)))))
