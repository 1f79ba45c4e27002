"""Random calls; the examples are the same on every machine (derandomised), poison as everywhere."""

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sparse_mla import cases, matrix

pattern = st.sampled_from(cases.PATTERNS)


@st.composite
def calls(draw):
    """(point, rows, seed) of a call small enough for the interpreter."""
    impl = draw(st.sampled_from(cases.interpretable_impls()))
    point = {
        "route": (impl, draw(st.integers(1, 5)) if impl == "split_k" else None),
        "width": draw(st.integers(1, 40 if impl == "serial" else 90)),
        "heads": draw(st.integers(1, 3 if impl in ("serial", "simt") else 40)),
        "page": draw(st.sampled_from(matrix.PAGES)),
        "stride": draw(st.sampled_from(matrix.STRIDES)),
        "offset": draw(st.integers(0, 40)),
        "sink": draw(st.sampled_from(matrix.SINKS)),
        "extra": draw(st.one_of(st.just(0), st.integers(1, 40))),
        "view": draw(st.sampled_from(matrix.VIEWS)),
        "scratch": draw(st.sampled_from(matrix.SCRATCH)),
    }
    lengths = st.sampled_from(matrix.ROW_LENGTHS)
    if draw(st.booleans()):
        rows = draw(st.lists(st.tuples(pattern, lengths), min_size=1, max_size=2))
    else:
        rows = [(draw(pattern), None)]
    return point, rows, draw(st.integers(0, 999))


@settings(max_examples=12, derandomize=True, deadline=None)
@given(call=calls())
def test_any_call_is_the_oracle(call):
    point, rows, seed = call
    assert matrix.run(point, rows, seed=seed) == []


@settings(max_examples=200, derandomize=True, deadline=None)
@given(tiles=st.integers(0, 4096), splits=st.integers(1, 64))
def test_shares_are_a_partition(tiles, splits):
    """The kernel's arithmetic for a split's tiles: in order, without gaps, shares equal but for one."""
    borders = [split * tiles // splits for split in range(splits + 1)]
    shares = [last - first for first, last in zip(borders, borders[1:], strict=False)]
    assert borders[0] == 0 and borders[-1] == tiles
    assert min(shares) >= 0 and max(shares) - min(shares) <= 1
