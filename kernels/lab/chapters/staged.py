"""The staged rung's story: the log of attempts, what the counters said, and what the compiled loops hold."""

from __future__ import annotations

import math
import re
from functools import lru_cache
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure

from kernels.lab import roofline
from kernels.lab.chapters import split_cases
from kernels.lab.chapters.early_use import TILE as SPECIALISED
from kernels.lab.chapters.overlap import MARKS
from kernels.lab.chapters.serialised import waits
from kernels.lab.compile import compile_many, make_request
from kernels.lab.compile.result import Compiled
from kernels.lab.compile.sass import Loop
from kernels.lab.devices import device_of
from kernels.lab.evidence import Evidence
from kernels.lab.figures import style
from kernels.sparse_mla import plan as planning
from kernels.sparse_mla import sparse_mla_decode
from kernels.sparse_mla.launch import CONSUMER_REGISTERS
from kernels.sparse_mla.tiles import MANY_HEADS, Tile, tile_candidates

DATA = Path(__file__).resolve().parents[3] / "data"
H200 = planning.Device(int(device_of("h200")["sm_count"]), (9, 0), 232_448)
# In the order of the story: the log begins with the batched products, the story with what they were to replace
NAMES = {
    "plain": "plain Triton",
    "batched_dot": "batched products",
    "prefetch": "prefetch, in words",
    "by_hand": "by hand, in Gluon",
    "tables_serialised": "tables, serialised",
    "tables": "tables",
    "overlap_scores": "overlapped scores",
    "three_buffers": "three buffers",
    "kept": "kept",
    "specialised_first": "labour divided",
    "two_consumers": "two consumers",
    "specialised_whole": "words kept whole",
    "specialised": "fetched in halves",
}
EVEN = 0.02  # a mean gain or loss below this is called even: clocks are not locked
SHARES = {
    "share_wgmma_wait": ("the tensor cores' products", style.BLUE),
    "share_first_loads": ("loads before the loop", style.VERMILLION),
    "share_later_loads": ("later loads from memory", style.ORANGE),
    "share_barrier": ("other warps, at a barrier", style.PURPLE),
    "share_shared_memory": ("shared memory", style.GREEN),
    "share_fixed_latency": ("the instruction before", style.SKY),
    "share_issuing": ("nothing: it issues", style.YELLOW),
    "share_other": ("something else", style.GREY),
}


@lru_cache
def _read(name: str) -> pd.DataFrame:
    return pd.read_csv(DATA / name)


def attempts() -> pd.DataFrame:
    """The log of attempts, data/attempts.csv, in the story's order, with ratio (to FlashMLA in that run) and
    label.

    Raises:
        ValueError: an attempt without a place in the story.
    """
    log = _read("attempts.csv")
    unknown = sorted(set(log["attempt"]) - set(NAMES))
    if unknown:
        raise ValueError(f"data/attempts.csv: attempts {unknown} are not told; accepted: {list(NAMES)}")
    order = {name: place for place, name in enumerate(NAMES)}
    log = log.assign(ratio=log["median_us"] / log["flash_mla_us"], label=log["attempt"].map(NAMES))
    return log.sort_values(["attempt", "batch"], key=lambda c: c.map(order) if c.name == "attempt" else c)


def evidence_of(rows: pd.DataFrame, note: str | None = None) -> Evidence:
    """The evidence line of rows of the log or of its counters.

    Raises:
        ValueError: rows of several devices or dates.
    """
    devices, dates = set(rows["device"]), set(rows["date"])
    if len(devices) != 1 or len(dates) != 1:
        raise ValueError(
            f"rows: got devices {sorted(devices)} and dates {sorted(dates)}, accepted is one each"
        )
    return Evidence("recorded", device=devices.pop(), date_utc=dates.pop(), note=note)


def far_from_roof(attempt: str = "plain", device: str = "h200", heads: int = 64) -> pd.DataFrame:
    """Columns batch, roof_us, bound, median_us, over_roof, share_of_bandwidth (%): an attempt's times under
    the card's roofline, with rates that were measured on such a card.
    """
    rows = []
    for row in attempts().query("attempt == @attempt").itertuples():
        work = roofline.attention(row.batch, heads, row.topk)
        roof = roofline.roof(work, device, measured=True)
        rows.append(
            {
                "batch": row.batch,
                "roof_us": roof.us,
                "bound": roof.bound,
                "median_us": row.median_us,
                "over_roof": row.median_us / roof.us,
                "share_of_bandwidth": 100 * roof.memory_us / row.median_us,
            }
        )
    return pd.DataFrame(rows)


def _ratios() -> pd.DataFrame:
    """A row a batch and number of candidates, a column an attempt."""
    return attempts().pivot(index=["batch", "topk"], columns="attempt", values="ratio")


def gain(attempt: str, against: str) -> float:
    """How much smaller an attempt's ratio to FlashMLA is than another's: geometric mean over shared shapes.

    0.1 is a tenth less time. Ratios are compared because the runs' clocks differ.

    Raises:
        ValueError: no batch and number of candidates in common.
    """
    wide = _ratios()[[attempt, against]].dropna()
    if wide.empty:
        raise ValueError(f"attempt={attempt!r} and {against!r} share no batch")
    return 1 - math.exp((wide[attempt] / wide[against]).map(math.log).mean())


def verdicts() -> pd.DataFrame:
    """Columns attempt, change, against, gain (%), verdict: each attempt against the best one before it."""
    changes = attempts().drop_duplicates("attempt").set_index("attempt")["change"]
    rows, best = [], None
    for attempt in NAMES:
        if best is None:
            rows.append((NAMES[attempt], changes[attempt], "–", float("nan"), "the start"))
            best = attempt
            continue
        better = gain(attempt, best)
        verdict = "even" if abs(better) < EVEN else "won" if better > 0 else "lost"
        rows.append((NAMES[attempt], changes[attempt], NAMES[best], 100 * better, verdict))
        best = attempt if verdict == "won" else best
    return pd.DataFrame(rows, columns=["attempt", "change", "against", "gain", "verdict"])


def fastest_of_its_run(attempt: str, rivals: tuple[str, ...]) -> bool:
    """Whether an attempt beats others at every shape that they share; they were timed in one run."""
    wide = _ratios()[[attempt, *rivals]].dropna()
    return bool(len(wide) and wide[list(rivals)].gt(wide[attempt], axis=0).all(axis=None))


def attempts_figure(rows: pd.DataFrame, evidence: Evidence, bars: tuple[float, ...] = (1.0,)) -> Figure:
    """Ratio to FlashMLA (log axis) of each attempt, the story downwards, a marker a batch."""
    looks = dict(
        zip(
            (1, 8, 16, 32, 64, 128),
            zip(
                "ovsD^X",
                (style.BLUE, style.BROWN, style.ORANGE, style.GREY, style.GREEN, style.PURPLE),
                strict=True,
            ),
            strict=True,
        )
    )
    verdict = dict(verdicts()[["attempt", "verdict"]].itertuples(index=False))
    labels = [label for label in NAMES.values() if label in set(rows["label"])]
    fig, ax = plt.subplots(figsize=(style.WIDTH, 1.4 + 0.42 * len(labels)))
    for batch, mine in rows.groupby("batch"):
        marker, tint = looks[batch]
        y = [labels.index(label) for label in mine["label"]]
        ax.plot(
            mine["ratio"], y, marker=marker, color=tint, markersize=7, linewidth=0.9, alpha=0.9,
            linestyle=(0, (2, 2)), label=f"batch {batch}",
        )  # fmt: skip
    for bar in bars:
        ax.axvline(bar, color=style.INK, linewidth=1, linestyle=(0, (4, 3)))
        name = "FlashMLA" if bar == 1 else f"{bar:g}"
        ax.annotate(
            name, (bar, 0), xycoords=("data", "axes fraction"), xytext=(3, 4), textcoords="offset points",
            fontsize=9, color=style.INK,
        )  # fmt: skip
    for line, label in enumerate(labels):
        ax.annotate(
            verdict[label], (1, line), xycoords=("axes fraction", "data"), xytext=(6, 0),
            textcoords="offset points", va="center", fontsize=9,
            fontweight="bold" if verdict[label] == "won" else "normal",
        )  # fmt: skip
    style.log_axis(ax, "x")
    ax.set_xticks([0.5, 0.7, 1, 1.5, 2, 3, 4, 5], ["0.5", "0.7", "1", "1.5", "2", "3", "4", "5"])
    ax.set_xlim(min(0.62, rows["ratio"].min() / 1.08), rows["ratio"].max() * 1.12)
    ax.set_yticks(range(len(labels)), labels)
    ax.invert_yaxis()
    ax.set_xlabel("time over FlashMLA's in the same run (log scale; less is faster)")
    fig.legend(loc="outside upper center", ncols=6, fontsize=9, handletextpad=0.3, columnspacing=1.4)
    return style.finish(fig, evidence)


def counters() -> pd.DataFrame:
    """What ncu said of two attempts: data/attempts_counters.csv."""
    return _read("attempts_counters.csv")


def counter(name: str, attempt: str = "tables") -> float:
    """One value of the counters.

    Raises:
        KeyError: no such counter of that attempt.
    """
    found = counters().query("counter == @name and attempt == @attempt")["value"]
    if len(found) != 1:
        raise KeyError(f"name={name!r}: {len(found)} rows of {attempt!r} in data/attempts_counters.csv")
    return float(found.iloc[0])


def waiting() -> pd.DataFrame:
    """One row a profiled attempt, one column a thing that a warp waits for (%): the shares of samples."""
    rows = counters()
    wide = rows[rows["counter"].isin(SHARES)].pivot(index="attempt", columns="counter", values="value")
    return wide.loc[[name for name in NAMES if name in wide.index], list(SHARES)]


def waiting_figure(evidence: Evidence) -> Figure:
    """What warps wait for, as stacked bars: one an attempt."""
    shares = waiting()
    fig, ax = plt.subplots(figsize=(style.WIDTH, 2.7))
    left = pd.Series(0.0, index=shares.index)
    for name, (label, tint) in SHARES.items():
        ax.barh(
            range(len(shares)), shares[name], left=left, height=0.6, color=tint, edgecolor="white",
            linewidth=0.8, label=label,
        )  # fmt: skip
        for line, (start, wide) in enumerate(zip(left, shares[name], strict=True)):
            ax.text(
                start + wide / 2, line, f"{wide:.0f}", ha="center", va="center", fontsize=9,
                color="white" if tint in (style.BLUE, style.VERMILLION) else "black",
            )  # fmt: skip
        left += shares[name]
    ax.set_yticks(range(len(shares)), [NAMES[name] for name in shares.index])
    ax.invert_yaxis()
    ax.grid(axis="y", visible=False)
    ax.set(xlim=(0, 100.5), xlabel="share of the samples of all warps (%)")
    fig.legend(
        loc="outside upper left", ncols=3, fontsize=8.5, title="a warp waits for", title_fontsize=9,
        alignment="left",
    )  # fmt: skip
    return style.finish(fig, evidence)


def compile_rungs() -> list[Compiled]:
    """The plain split-K tile and the staged tiles of the planner, for sm_120 and for sm_90.

    Without wide tiles and tiles for few heads, which `kernels.lab.chapters.wide` and `few_heads` compare: a short
    share of theirs is no loop.
    """
    requests = []
    for target, device, kind in (("sm_120", planning.RTX_PRO_6000, "sm120"), ("sm_90", H200, "native")):
        requests.append(make_request("sparse_mla", "split_k", MANY_HEADS, target))
        looped = [tile for tile in tile_candidates("staged", device, kind) if not tile.wide and not tile.few]
        tiles = sorted(looped, key=lambda t: (t.wgmma, t.block_h, t.block_t))
        requests += [make_request("sparse_mla", "staged", tile, target) for tile in tiles]
    return compile_many(requests)


def loop_table(found: list[Compiled]) -> pd.DataFrame:
    """What each compiled kernel needs, and what a warp issues in one pass through its main loop.

    A block with producers has two loops, a row each. Columns: target, rung, tile, warps ("all", "consumers",
    "producers"), shared_kib, registers (at the launch), spill_bytes, conversions, matrix_loads (LDSM), other_loads
    (LDS), stores, barriers, products, issued_over_needed (operations of the products; missing for producers), waits
    (of the whole kernel, for a warp group's products; those of a block with producers are its consumers'), per_pair
    (instructions of these warps for one head and one token).

    Raises:
        RuntimeError: a kernel does not compile, or has no loop for a group of warps.
    """
    rows = []
    for one in found:
        if not one.ok or one.main_loop is None:
            raise RuntimeError(f"{one.impl} {one.tile} for {one.target}: {one.error or 'no main loop'}")
        pairs = one.tile["block_h"] * one.tile["block_t"]
        for group, loop, warps in loops_of(one):
            counts, opcodes = loop.counts, loop.counts.opcodes
            multiplies = group != "producers"
            issued = counts.tensor_flops * warps / (4 * 512 * pairs)
            rows.append(
                {
                    "target": one.target,
                    "rung": one.impl,
                    "tile": tile_words(one.tile),
                    "warps": group,
                    "shared_kib": one.shared_bytes / 1024,
                    "registers": one.registers,
                    "spill_bytes": one.spill_bytes,
                    "conversions": counts["conversion"],
                    "matrix_loads": opcodes.get("LDSM", 0),
                    "other_loads": opcodes.get("LDS", 0),
                    "stores": opcodes.get("STS", 0) + opcodes.get("STSM", 0),
                    "barriers": opcodes.get("BAR", 0),
                    "products": opcodes.get("HMMA", 0) + opcodes.get("HGMMA", 0),
                    "issued_over_needed": issued if multiplies else None,
                    "waits": waits(one.sass) if multiplies else 0,
                    "per_pair": counts.total * warps / pairs,
                }
            )
    return pd.DataFrame(rows)


def loops_of(one: Compiled) -> list[tuple[str, Loop, int]]:
    """Main loops of a compiled kernel with the warps that run them: name of the group, loop, number of warps.

    Raises:
        RuntimeError: a block with producers has no loop that fetches.
    """
    if not one.producer_warps:
        return [("all", one.main_loop, one.main_warps)]
    if one.producer_loop is None:
        raise RuntimeError(f"{one.impl} {one.tile} for {one.target}: no producers' loop")
    return [
        ("consumers", one.main_loop, one.main_warps),
        ("producers", one.producer_loop, one.producer_warps),
    ]


def register_shares(tile: Tile = SPECIALISED, target: str = "sm_90") -> pd.Series:
    """Registers a thread of a block with producers: launched, producers, consumers; the latter two from the PTX.

    Raises:
        RuntimeError: the kernel does not compile, or hands out registers in another way than this reads.
    """
    one = compile_many([make_request("sparse_mla", "staged", tile, target)])[0]
    given, taken = (
        {int(count) for count in re.findall(rf"setmaxnreg\.{way}\.sync\.aligned\.u32\s+(\d+)", one.ptx)}
        for way in ("inc", "dec")
    )
    if not one.ok or CONSUMER_REGISTERS not in given or len(taken) != 1:
        raise RuntimeError(f"{tile} for {target}: {one.error or f'given {given}, taken {taken}'}")
    return pd.Series({"launched": one.registers, "producers": taken.pop(), "consumers": CONSUMER_REGISTERS})


def tile_words(tile: dict | Tile) -> str:
    """A tile as "64×32, 8 warps", with its producers, or warps that ask, and its buffers where there are several."""
    tile = Tile(**tile) if isinstance(tile, dict) else tile
    others = "that ask" if tile.few else "producers"
    producers = f" + {tile.producer_warps} {others}" if tile.producer_warps else ""
    buffers = f", {tile.num_stages} buffers" if tile.num_stages > 1 else ""
    return f"{tile.block_h}×{tile.block_t}, {tile.num_warps} warps{producers}{buffers}"


def dependent_launch(tile: Tile, target: str = "sm_120") -> pd.DataFrame:
    """Columns kernel, overlap, and one count for each of `overlap.MARKS`, from the PTX of the staged kernel and
    the combine that follows it.

    Raises:
        RuntimeError: a kernel does not compile for the target.
    """
    combine = {"block_h": 1, "block_t": 1, "num_warps": 2, "num_stages": 1}
    asked = [(impl, on) for impl in ("staged", "combine") for on in (True, False)]
    requests = [
        make_request("sparse_mla", impl, tile if impl == "staged" else combine, target, overlap=on)
        for impl, on in asked
    ]
    rows = []
    for (impl, on), one in zip(asked, compile_many(requests), strict=True):
        if not one.ok:
            raise RuntimeError(f"{impl} for {target}: {one.error}")
        rows.append(
            {"kernel": impl, "overlap": on} | {name: one.ptx.count(mark) for name, mark in MARKS.items()}
        )
    return pd.DataFrame(rows)


def correctness(device: str) -> pd.DataFrame:
    """Columns tile_class (and the tile), lengths, output_error, lse_error: the rung against the float64 reference,
    NaN in every byte that must not count. Empty on a CPU, where Gluon does not run.

    Of each class the planner's tile for this batch, and in two splits those that it keeps for longer shares or few
    heads: with producers, a loop over wide tiles, candidates as rows.
    """
    columns = ["tile_class", "lengths", "output_error", "lse_error"]
    if device != "cuda":
        return pd.DataFrame(columns=columns)
    lengths = [(0, 1, 257, 512)[row % 4] for row in range(16)]
    made = split_cases.case(device, 16, 64, 512, lengths)
    want, rows = split_cases.reference(made), []
    card, said = planning.device_of(made.q), ", ".join(map(str, lengths[:4]))
    for kind in ("native", "sm120"):
        chosen = planning.plan(16, 64, 512, device=card, impl="staged", tile_class=kind)
        tiles = tile_candidates("staged", card, kind)
        others = [tile for tile in tiles if tile.producer_warps or tile.wide or tile.few]
        for one in dict.fromkeys([chosen, *(planning.Plan("staged", tile, 2) for tile in others)]):
            got = sparse_mla_decode(**made.arguments(), plan=one)
            words = f"{kind}, {tile_words(one.tile)}, {one.num_splits} splits"
            rows.append((words, said, *split_cases.errors(*got, *want)))
    return pd.DataFrame(rows, columns=columns)
