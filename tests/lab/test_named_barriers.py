"""The earlier version, in which one thread arrives for its group, and the log of what racecheck said of both."""

import re
from pathlib import Path

from kernels.lab.chapters import named_barriers
from kernels.lab.chapters.edited import edited
from kernels.sparse_mla import launch


def reports(source, mark=""):
    """What is arrived at and waited for, in the order of the alphabet."""
    return sorted(re.findall(rf"^ +{mark}(?:arrive|wait)\((\w+)", source, re.MULTILINE))


def test_the_edits_turn_every_named_barrier_into_an_mbarrier():
    source = Path(launch.__file__).with_name("specialised.py").read_text(encoding="utf-8")
    earlier = edited(source, named_barriers.MBARRIERS)
    # One group arrives and the other waits
    assert reports(source) == ["EMPTY", "EMPTY", "FULL", "FULL", "READY", "READY"]
    assert reports(earlier, r"mbarrier\.") == ["empty", "empty", "full", "full", "ready", "ready"]
    assert "mbarrier" not in source and not reports(earlier)


PTX = """
    bar.sync 0, 128;
    @%p1 mbarrier.arrive.shared::cta.b64 _, [%r1];
    st.shared.b32 [%r2], %r3;
    ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r4}, [%r5];
    @%p1 mbarrier.arrive.shared::cta.b64 _, [%r1];
    barrier.sync 1;
    st.global.b32 [%rd1], %r3;
    @%p1 mbarrier.arrive.shared::cta.b64 _, [%r1];
"""


def test_accesses_between_a_meeting_and_an_arrival_are_counted():
    assert named_barriers.accesses_before_arrivals(PTX) == [0, 2, 0]
    assert named_barriers.accesses_before_arrivals("mbarrier.arrive.shared::cta.b64 _, [%r1];") == [None]
    jumped_to = PTX.replace("    @%p1", "$L__BB0_4:\n    @%p1", 1)
    assert named_barriers.accesses_before_arrivals(jumped_to) == [None, None, 0]


def test_what_the_appendix_says_of_the_log_is_in_it():
    found, evidence = named_barriers.racecheck()
    assert evidence.kind == "recorded" and set(named_barriers.VERSIONS) <= set(found["version"])
    by_version = found.set_index("version")["hazards"]
    elected, every = (by_version[name] for name in named_barriers.VERSIONS)
    assert elected > 0 == every
    assert by_version[by_version.index.str.contains("without the meetings")].min() > 0
