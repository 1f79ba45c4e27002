"""A page's tests belong together: see `ByPage`."""

from tests.site.conftest import ByPage
from tests.site.test_pages import NAMES, every_page


def test_the_tests_of_a_page_are_one_unit():
    units = {
        ByPage._split_scope(None, f"tests/site/test_pages.py::test_{n}[{name}]")
        for n in "ab"
        for name in NAMES
    }
    assert len(units) == len(NAMES) == len(set(NAMES))


def test_other_tests_are_units_of_their_own():
    for nodeid in ("tests/site/test_pages.py::test_a", "tests/site/test_use.py::test_b[file]"):
        assert ByPage._split_scope(None, nodeid) == nodeid


@every_page
def test_a_page_is_named_as_its_unit(name, request):
    """The names of real tests are read as the units above suppose."""
    here = request.node.nodeid.replace("test_scheduler.py", "test_pages.py")
    assert ByPage._split_scope(None, here) == f"{name}]"
