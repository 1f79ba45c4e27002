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


def test_the_log_has_a_version_that_is_clean_and_one_that_must_not_be():
    found, evidence = named_barriers.racecheck()
    assert evidence.kind == "recorded" and found["version"].iloc[0] in named_barriers.VERSIONS
    by_version = found.set_index("version")["hazards"]
    assert by_version["every thread for itself"] == 0
    assert by_version[by_version.index.str.contains("without the meetings")].min() > 0
