"""The version in which every thread arrives for itself, and the log of what racecheck said of both."""

from pathlib import Path

from kernels.lab.chapters import named_barriers
from kernels.lab.chapters.edited import edited
from kernels.sparse_mla import launch


def test_the_edits_leave_no_mbarrier():
    source = Path(launch.__file__).with_name("specialised.py").read_text(encoding="utf-8")
    version = edited(source, named_barriers.NAMED)
    assert "mbarrier." in source and "mbarrier." not in version
    # Both groups take part in each hand-over: full, empty, ready
    assert version.count("    arrive(") == 3 and version.count("wait(8 +") == version.count("wait(10 +") == 1


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
    assert evidence.kind == "recorded" and found["version"].iloc[0] in named_barriers.VERSIONS
    by_version = found.set_index("version")["hazards"]
    assert by_version["every thread for itself"] == 0
    assert by_version[by_version.index.str.contains("without the meetings")].min() > 0
