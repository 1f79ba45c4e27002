"""Figures draw with data and without, look the same twice, and tables are MyST that a parser accepts."""

import xml.etree.ElementTree as ElementTree

import matplotlib
import pandas as pd
import pytest

matplotlib.use("agg")

import matplotlib.pyplot as plt  # noqa: E402

from kernels.lab import figures  # noqa: E402
from kernels.lab.chapters import step  # noqa: E402
from kernels.lab.evidence import Evidence, missing  # noqa: E402
from kernels.lab.figures import bars, diagrams, style, tables  # noqa: E402
from kernels.lab.figures.diagrams import budget  # noqa: E402
from kernels.lab.records import schema  # noqa: E402

RECORDED = Evidence("recorded", "NVIDIA H200", "2026-11-29", "abc1234")


@pytest.fixture(autouse=True)
def _style():
    style.apply()
    yield
    plt.close("all")


def times():
    rows = [
        {
            "impl": impl,
            "batch": batch,
            "median_us": base * batch**0.5,
            "p20_us": base * batch**0.5 * 0.9,
            "p80_us": base * batch**0.5 * 1.1,
            "status": "ok",
            "predicted_us": base,
        }
        for impl, base in (("simt", 100.0), ("auto", 10.0))
        for batch in (1, 4, 16)
    ]
    rows.append({"impl": "flash_mla", "batch": 1, "status": "skipped"})
    return pd.DataFrame(rows)


def texts(fig):
    return [text.get_text() for text in fig.findobj(matplotlib.text.Text) if text.get_text()]


@pytest.mark.parametrize(
    "draw",
    [
        lambda: figures.lines(times(), RECORDED),
        lambda: figures.ratio_bars({"B=1": 0.8, "B=64": 1.4}, RECORDED),
        lambda: figures.heat_map(
            pd.DataFrame([[1.0, 200.0]], index=[16], columns=[16, 32]),
            RECORDED,
            x_label="x",
            y_label="y",
            unit="KiB",
            limit=99,
        ),
        lambda: figures.share_bars(
            pd.DataFrame([[3.0, 1.0]], index=["baseline"], columns=["attention", "glue"]), RECORDED
        ),
        lambda: figures.waterfall([("baseline", 80.0), ("mma", 40.0), ("split_k", 50.0)], RECORDED),
        lambda: figures.scatter_prediction(times(), RECORDED),
    ],
)
def test_plots_carry_the_evidence_and_are_valid_svg(draw):
    fig = draw()
    assert any("Recorded on NVIDIA H200 · 2026-11-29 · commit abc1234" in text for text in texts(fig))
    ElementTree.fromstring(style.svg(fig).encode())


@pytest.mark.parametrize(
    "draw",
    [
        lambda gone: figures.lines(schema.frame([]), gone),
        lambda gone: figures.ratio_bars({"B=1": None}, gone),
        lambda gone: figures.heat_map(pd.DataFrame(), gone, x_label="x", y_label="y", unit="KiB"),
        lambda gone: figures.share_bars(pd.DataFrame(), gone),
        lambda gone: figures.waterfall([("baseline", None)], gone),
        lambda gone: figures.scatter_prediction(schema.frame([]).assign(predicted_us=[]), gone),
    ],
)
def test_without_data_every_plot_says_so(draw):
    found = " ".join(texts(draw(missing("data/runs is empty"))))
    assert "recorded yet" in found and "data/runs is empty" in found


def test_a_part_is_named_at_its_widest_segment_or_beside_the_bars():
    shares = pd.DataFrame(
        [[80.0, 1.0, 10.0, 5.0, 4.0], [2.0, 1.0, 20.0, 20.0, 57.0]],
        index=["baseline", "indexer_cap"],
        columns=["attention", "topk", "indexer", "gemm_fp32", "glue"],
    )
    placed, narrow = bars.name_places(shares)
    assert narrow == ["topk"]
    assert {part: row for part, (row, _) in placed.items()} == {
        "attention": 0, "indexer": 1, "gemm_fp32": 1, "glue": 1
    }  # fmt: skip
    found = texts(figures.share_bars(shares, RECORDED))
    assert all(found.count(label) == 1 for label in ("attention", "top-k", "indexer", "FP32 GEMMs", "glue"))


def test_names_of_narrow_neighbours_do_not_touch():
    shares = pd.DataFrame([[78.0, 11.0, 6.0, 5.0]], index=["baseline"],
                          columns=["attention", "indexer", "gemm_fp32", "experts"])  # fmt: skip
    placed, narrow = bars.name_places(shares)
    assert narrow and set(placed) | set(narrow) == set(shares.columns)
    spans = sorted(
        (centre - len(style.look(part).label) * bars.CHARACTER / 2,
         centre + len(style.look(part).label) * bars.CHARACTER / 2)
        for part, (_, centre) in placed.items()
    )  # fmt: skip
    assert all(one[1] <= two[0] for one, two in zip(spans, spans[1:], strict=False))
    assert spans[-1][1] <= 101


def test_parts_of_a_step_have_colours_of_their_own():
    assert len({style.colour(part) for part in step.GROUPS}) == len(step.GROUPS)
    assert all(part in style.STYLES for part in step.GROUPS)


def test_rows_without_a_time_are_not_drawn():
    assert not any("FlashMLA" in text for text in texts(figures.lines(times(), RECORDED)))


def test_the_evidence_is_put_once():
    fig = figures.finish(figures.finish(plt.figure(), RECORDED), RECORDED)
    assert sum("Recorded on" in text for text in texts(fig)) == 1


def test_the_same_data_gives_the_same_bytes():
    assert style.svg(figures.lines(times(), RECORDED)) == style.svg(figures.lines(times(), RECORDED))


@pytest.mark.parametrize(
    "draw",
    [
        diagrams.page_layout,
        diagrams.grid_and_sms,
        diagrams.shared_memory_budget,
        diagrams.split_and_combine,
        diagrams.wasted_area,
        diagrams.divided_labour,
    ],
)
def test_diagrams_draw(draw):
    ElementTree.fromstring(style.svg(draw()).encode())


def test_page_layout_knows_the_layout_s_bytes():
    from kernels.sparse_mla import layout

    for page_size in (2, 64, 256):
        found = texts(diagrams.page_layout(page_size))
        for offset in (layout.TOKEN_BYTES, layout.ENTRY_BYTES):
            assert f"{offset * page_size:,}" in found
        assert f"{layout.padded_page_stride(page_size):,}" in found


@pytest.mark.parametrize(
    ("draw", "argument"),
    [
        (lambda: diagrams.page_layout(1), "page_size"),
        (lambda: diagrams.grid_and_sms(heads=64, head_group=24), "head_group"),
        (lambda: diagrams.split_and_combine(num_splits=9), "num_splits"),
        (lambda: diagrams.wasted_area(live=(9,), cap=8), "live"),
    ],
)
def test_impossible_diagrams_name_the_argument(draw, argument):
    with pytest.raises(ValueError, match=argument):
        draw()


def test_budget_by_hand_is_the_campaign_s_arithmetic():
    parts = budget.by_hand(64, 64)
    assert parts["Q"] == parts["KV"] == 64 * 1024
    found = " ".join(texts(diagrams.shared_memory_budget({"tile": parts, "small": 40_000})))
    assert "does not fit" in found and "fits" in found and "101,376" in found


def test_every_style_is_told_apart_without_colour_or_by_it():
    ladder = ["serial", "simt", "mma", "split_k", "auto", "auto_sm120", "flash_mla"]
    assert len({(style.look(key).marker, style.look(key).dash) for key in ladder}) == len(ladder)
    assert len({style.colour(key) for key in ladder}) == len(ladder)


def test_text_colours_have_contrast_on_white():
    for key in style.STYLES:
        rgb = matplotlib.colors.to_rgb(style.look(key).ink)
        assert 1.05 / (style._luminance(rgb) + 0.05) >= 4.5, key


def test_numbers_on_axes_are_plain():
    assert [style.plain_number(x) for x in (0.25, 1, 128, 4096, 8192, 131072, 1048576)] == [
        "0.25",
        "1",
        "128",
        "4,096",
        "8K",
        "128K",
        "1M",
    ]


def test_table_is_a_numbered_myst_directive():
    df = pd.DataFrame({"impl": ["a|b", "auto"], "us": [1234.5, None], "n": [3, 4]})
    text = tables.table(
        df, "tab-x", "Times.", RECORDED, {"us": "{:,.1f}"}, {"impl": "kernel", "us": "time (µs)"}
    )
    assert (
        text.startswith(":::{table} Times. <span")
        and ":name: tab-x" in text
        and text.rstrip().endswith(":::")
    )
    assert "| a\\|b | 1,234.5 |" in text and "| auto | – |" in text and "sortable" not in text


def test_long_tables_are_sortable_and_unknown_columns_refused():
    df = pd.DataFrame({"x": range(20)})
    assert ":class: sortable" in tables.table(df, "t", "c")
    with pytest.raises(KeyError, match="columns names \\['y'\\]"):
        tables.table(df, "t", "c", columns={"y": "y"})


def test_empty_table_says_that_nothing_is_recorded():
    text = tables.table(schema.frame([])[["impl", "batch"]], "t", "c", missing("no run"))
    assert "*not recorded yet*" in text


def test_myst_turns_the_table_into_a_captioned_table():
    docutils_main = pytest.importorskip("myst_parser.parsers.docutils_")
    from docutils.core import publish_doctree

    text = tables.table(pd.DataFrame({"a": [1, 2]}), "tab-y", "A caption.", RECORDED)
    tree = publish_doctree(
        text, parser=docutils_main.Parser(), settings_overrides={"myst_enable_extensions": ["colon_fence"]}
    )
    (found,) = tree.findall(lambda node: node.tagname == "table")
    assert "A caption." in found.children[0].astext() and "tab-y" in found["names"]
