"""The hash of what a kernel consists of: unmoved by where things stand, moved by what they are."""

import ast

import pytest

from kernels.lab.records import device_code

KERNEL = """from kernels.sparse_mla.helpers import LIMIT, helper


@jit
def some_kernel(x):
    if x > LIMIT:
        helper(x)
    store(x)
"""
HELPERS = """LIMIT = constexpr(8)
UNUSED = constexpr(1)


@jit
def helper(x):
    \"\"\"Does something.\"\"\"
    return f"add {x}"  # in words
"""


@pytest.fixture
def digest(tmp_path):
    def of(kernel=KERNEL, helpers=HELPERS, **more):
        for old in tmp_path.glob("*.py"):
            old.unlink()
        for name, text in {"some": kernel, "helpers": helpers, **more}.items():
            (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
        return device_code.digests(tmp_path)["some_kernel"]

    return of


def test_comments_docstrings_layout_and_places_do_not_count(digest):
    before = digest()
    assert digest(helpers=HELPERS.replace("  # in words", "")) == before
    assert digest(helpers=HELPERS.replace("Does something.", "Does it.")) == before
    assert digest(helpers=HELPERS.replace("constexpr(1)", "constexpr(2)")) == before, "nobody takes it"
    assert (
        digest(helpers="# Moved\n", kernel=KERNEL.split("\n\n\n")[1].join([HELPERS + "\n\n", ""])) == before
    )
    chain = KERNEL.replace("sparse_mla.helpers", "sparse_mla.between")
    assert digest(chain, between="from kernels.sparse_mla.helpers import LIMIT, helper\n") == before


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("constexpr(8)", "constexpr(9)"),
        ('return f"add', 'return f"sub'),
        ("@jit\ndef helper", "@other\ndef helper"),
        ("def helper(x)", "def helper(x, y=1)"),
    ],
)
def test_a_changed_helper_counts(digest, old, new):
    assert old in HELPERS and digest(helpers=HELPERS.replace(old, new)) != digest()


def test_a_statement_in_another_block_counts(digest):
    assert digest(KERNEL.replace("    store(x)", "        store(x)")) != digest()


def test_every_kernel_that_is_launched_has_one():
    from kernels.lab.records import launches

    found = device_code.digests()
    assert set(launches.kernel_modules()) <= set(found) and len(set(found.values())) == len(found)


def test_formatted_strings_count_as_they_stand(digest):
    """Braces that stand twice are one to Python 3.12's tokens; the hash has to be that of the earlier versions."""
    long = 'return f"""\n{{\nadd {x}, {{f"{x:{width}}"}};\n}}\n"""'
    before = HELPERS.replace('return f"add {x}"  # in words', long)
    assert digest(helpers=before) != digest()
    assert digest(helpers=before.replace("{{\nadd", "{{ {{\nadd").replace("}}\n", "}} }}\n")) != digest(
        helpers=before
    )
    lines = before.splitlines(keepends=True)
    node = ast.parse(before).body[-1]
    assert "".join(long.removeprefix("return ").split()) in device_code._text(node, lines)
