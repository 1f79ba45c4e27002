"""The README's generated parts: up to date with the records, and nothing where no record is."""

import re

import pytest

from kernels.lab import records
from kernels.lab.chapters import step_times
from kernels.lab.evidence import Evidence
from kernels.lab.pages import readme, speed_table, waterfall
from kernels.lab.records import place, schema

STAGES = {"baseline": 400.0, "mma": 90.0, "split_k": 80.0, "indexer_cap": 40.0}


class Recorded:
    """A record of decode steps, as `waterfall.campaign` reads one."""

    def __init__(self, stages=STAGES, batches=(16, 64), status="ok"):
        self.frame = schema.frame(
            [
                {
                    "op": "decode_step",
                    "experiment": step_times.EXPERIMENT,
                    "stage": stage,
                    "batch": batch,
                    "max_context": width,
                    "median_us": 1e3 * value * batch / 64 * (1 if width == 1048576 else 0.5),
                    "status": status,
                }
                for stage, value in stages.items()
                for batch in batches
                for width in (8192, 1048576)
            ]
        )

    def rows(self, experiment):
        return self.frame[self.frame["experiment"] == experiment]

    def evidence(self):
        return Evidence("recorded", "NVIDIA H200", "2026-11-29", "abc1234")


@pytest.fixture
def house(tmp_path, monkeypatch):
    """A repository of its own with a README and no record."""
    monkeypatch.setattr(place, "root", lambda: tmp_path)
    monkeypatch.setattr(place, "recorded_runs", lambda: tmp_path / "data" / "runs")
    parts = "\n".join("\n".join(readme.markers(part)) for part in (waterfall.PART, speed_table.PART))
    (tmp_path / "README.md").write_text(f"# Title\n{parts}\nend\n")
    return tmp_path


def use(monkeypatch, record):
    monkeypatch.setattr(
        records, "newest", lambda experiment: record if experiment == step_times.EXPERIMENT else None
    )


def test_the_readme_is_up_to_date():
    assert not readme.outdated(), "run: python -m kernels.lab readme"


def test_without_a_record_there_is_no_picture(house):
    readme.write()
    text = (house / "README.md").read_text()
    assert "<picture>" not in text and speed_table.EMPTY in text and text.endswith("\nend\n")
    assert not (house / "data" / "pictures").exists() and not readme.outdated()


def test_with_a_record_the_picture_stands_for_both_themes(house, monkeypatch):
    use(monkeypatch, Recorded())
    assert sorted(readme.write()) == ["README.md", "waterfall-dark.svg", "waterfall-light.svg"]
    text = (house / "README.md").read_text()
    for name in re.findall(r'(?:src|srcset)="([^"]+)"', text):
        assert (house / name).is_file(), name
    assert "baseline 400.0, MMA 90.0, split-K 80.0, indexer cap 40.0" in text
    assert "batch 64, configured for 1,048,576 tokens: baseline to indexer cap, 10.0 times" in text
    assert "Recorded on NVIDIA H200 · 2026-11-29 · commit abc1234" in text
    assert not readme.outdated() and readme.write() == []


def test_a_changed_record_and_a_changed_picture_are_noticed(house, monkeypatch):
    use(monkeypatch, Recorded())
    readme.write()
    picture = house / "data" / "pictures" / "waterfall-dark.svg"
    right = picture.read_text()
    picture.write_text(right.replace("#", "# ", 1))
    assert readme.outdated() == ["waterfall-dark.svg"]
    # Another matplotlib draws otherwise: the values decide.
    picture.write_text(re.sub(r"<dc:title>.*?</dc:title>", "<dc:title>another</dc:title>", right))
    assert readme.outdated() == []
    use(monkeypatch, Recorded({**STAGES, "mma": 91.0}))
    assert len(readme.outdated()) == 3
    use(monkeypatch, None)
    assert len(readme.write()) == 3 and not picture.exists()


def test_rows_that_are_wrong_or_alone_make_no_picture(monkeypatch):
    assert waterfall.campaign(Recorded(status="wrong")) is None
    assert waterfall.campaign(Recorded({"baseline": 1.0})) is None
    assert waterfall.campaign(Recorded(batches=(1, 16))).batch == 16


def test_the_dark_picture_turns_greys_over_and_keeps_hues():
    light, dark = (waterfall.picture(waterfall.campaign(Recorded()), theme) for theme in waterfall.THEMES)
    assert "#24292f" in light and "#24292f" not in dark
    assert waterfall.darkened("#000000") == "#f5f5f5" and waterfall.darkened("#ffffff") == "#0f0f0f"
    red, green, blue = (int(waterfall.darkened("#d55e00")[at : at + 2], 16) for at in (1, 3, 5))
    assert red > green > blue


def test_the_introduction_gets_the_picture_where_a_record_allows_it(house, monkeypatch):
    page = house / "book" / "intro.md"
    page.parent.mkdir()
    page.write_text(f"# Title\n\n{waterfall.MARKER}\n")
    waterfall.write_introduction(house, {})
    assert waterfall.MARKER in page.read_text()
    use(monkeypatch, Recorded())
    waterfall.write_introduction(house, {})
    assert ":name: fig-campaign" in page.read_text() and (house / "book" / "waterfall.svg").is_file()
    with pytest.raises(ValueError, match="no line"):
        waterfall.write_introduction(house, {})


def test_a_part_needs_its_two_markers():
    begin, end = readme.markers("x")
    assert readme.replaced(f"a\n{begin}\nold\n{end}\nb\n", "x", "new") == f"a\n{begin}\nnew\n{end}\nb\n"
    with pytest.raises(ValueError, match="exactly one"):
        readme.replaced("nothing here", "x", "new")
