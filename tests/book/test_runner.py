"""The runner survives its chapters, says what went wrong and where, and runs only what has changed."""

import json
import sys
from pathlib import Path

import pytest
from _runner import engine

from tests.book.tiny import TinyBook, notebook

BROKEN = {
    "01-raises": (notebook("a = 1", 'raise ValueError("the reason")', "b = 2"), 3, "ValueError: the reason"),
    "02-dies": (notebook("import os\nos._exit(0)", "b = 2"), 2, "the kernel died"),
    "03-hangs": (notebook("a = 1", "import time\ntime.sleep(60)"), 3, "longer than 4 s"),
    "04-leaves": (
        notebook("a = 1", "import sys\nsys.exit(0)", "b = 2", "c = 3"),
        3,
        "2 cells after it did not",
    ),
    "05-nameless": (notebook("a = 1", kernelspec={}), 0, "names no kernelspec"),
    "06-foreign": (
        notebook("a = 1", kernelspec={"name": "julia-1.11", "display_name": "Julia", "language": "julia"}),
        0,
        "asks for the kernelspec 'julia-1.11'",
    ),
    "07-no-parameters": (notebook("a = 1", parameters=False), 0, "no cell is tagged 'parameters'"),
    "08-no-notebook": ("{", 0, "is no notebook"),
}


@pytest.fixture(scope="module")
def broken(tmp_path_factory):
    """One run over a book in which all chapters but the last are broken, each in its own way."""
    book = TinyBook(tmp_path_factory.mktemp("broken"))
    chapters = {name: text for name, (text, _, _) in BROKEN.items()}
    book.write({**chapters, "09-good": notebook("a = 1", "print(a + 1)")})
    result = book.run("--timeout", "4")
    return book, result


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_chapter_is_named_with_its_cell_and_cause(broken, name):
    book, result = broken
    _, cell, cause = BROKEN[name]
    entry = book.manifest["chapters"][name]
    assert result.returncode == 1
    assert entry["status"] == "failed"
    assert entry["error"]["cell"] == cell
    assert cause in entry["error"]["cause"]
    place = f"cell {cell}" if cell else "before its first cell"
    [line] = [line for line in result.stdout.splitlines() if line.startswith(f"FAILED {name}: ")]
    assert place in line and cause in line
    assert not (book.root / "_build" / "executed" / f"{name}.ipynb").exists()


def test_the_other_chapters_still_run(broken):
    book, _ = broken
    entry = book.manifest["chapters"]["09-good"]
    assert entry["status"] == "ok" and entry["executed_cells"] == entry["cells"] == 3
    assert book.executed("09-good").cells[-1].outputs[0].text == "2\n"


def test_cells_that_did_not_run_are_not_counted(broken):
    entry = broken[0].manifest["chapters"]["04-leaves"]
    assert (entry["cells"], entry["executed_cells"]) == (5, 2)


def test_a_failed_chapter_leaves_what_it_reached(broken):
    book, result = broken
    reached = book.root / "_build" / "failed" / "01-raises.ipynb"
    assert "the reason" in reached.read_text()
    assert str(reached) in result.stdout
    assert "ValueError" in book.manifest["chapters"]["01-raises"]["error"]["detail"]


def test_progress_names_chapter_and_cell_in_a_log(broken):
    lines = broken[1].stdout.splitlines()
    assert any("09-good" in line and "cell 1 of 3" in line and " s]" in line for line in lines)


def test_no_kernel_outlives_the_run(broken):
    book, _ = broken
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                environment = (folder / "environ").read_bytes()
            except OSError:
                continue
            assert f"BOOK_BUILD_DIR={book.root / '_build'}".encode() not in environment


def test_only_what_has_changed_runs_again(tiny_book):
    first, second = notebook("print(device, profile)"), notebook("print('two')")
    tiny_book.write({"01-first": first, "02-second": second})
    assert tiny_book.run().returncode == 0
    before = tiny_book.manifest["chapters"]

    result = tiny_book.run()
    assert result.returncode == 0 and "0 to execute, 2 unchanged" in result.stdout
    assert tiny_book.manifest["last_run"]["executed"] == []
    assert all(entry["cached"] for entry in tiny_book.manifest["chapters"].values())
    assert tiny_book.manifest["chapters"]["01-first"]["started"] == before["01-first"]["started"]

    tiny_book.write({"01-first": first, "02-second": notebook("print('changed')")})
    assert tiny_book.run().returncode == 0
    assert tiny_book.manifest["last_run"]["executed"] == ["02-second"]
    assert tiny_book.executed("02-second").cells[-1].outputs[0].text == "changed\n"

    # A kernel, a record and a parameter are inputs of every chapter.
    (tiny_book.root / "kernels").mkdir()
    (tiny_book.root / "kernels" / "simt.py").write_text("x = 1\n")
    tiny_book.run("--only", "01")
    assert tiny_book.manifest["last_run"]["executed"] == ["01-first"]
    (tiny_book.root / "data").mkdir()
    (tiny_book.root / "data" / "campaign.csv").write_text("a,b\n")
    tiny_book.run("--only", "01")
    assert tiny_book.manifest["last_run"]["executed"] == ["01-first"]
    tiny_book.run("--only", "01", "--profile", "full")
    assert tiny_book.executed("01-first").cells[-1].outputs[0].text == "cpu full\n"

    tiny_book.run("--only", "01", "--profile", "full", "--force")
    assert tiny_book.manifest["last_run"]["executed"] == ["01-first"]


def test_sources_stay_and_executed_copies_hide_the_injected_cell(tiny_book):
    text = notebook("print(device)")
    tiny_book.write({"01-first": text})
    tiny_book.run()
    assert (tiny_book.root / "book" / "01-first.ipynb").read_text() == text
    copy = tiny_book.executed("01-first")
    [injected] = [cell for cell in copy.cells if "injected-parameters" in cell.metadata.get("tags", [])]
    assert "remove-cell" in injected.metadata.tags
    assert str(tiny_book.root) not in json.dumps(copy)


def test_the_manifest_says_what_ran(tiny_book):
    tiny_book.write({"01-first": notebook("a = 1")})
    tiny_book.run()
    manifest = tiny_book.manifest
    entry = manifest["chapters"]["01-first"]
    assert manifest["schema"] == 1
    assert entry["title"] == "A chapter" and entry["source"] == "book/01-first.ipynb"
    assert len(entry["source_sha256"]) == len(entry["executed_sha256"]) == len(entry["key"]) == 64
    assert entry["device"]["kind"] == "cpu" and entry["profile"] == "quick" and entry["error"] is None
    assert entry["versions"]["python"] == ".".join(map(str, sys.version_info[:3]))
    assert entry["seconds"] > 0 and entry["started"].endswith("Z")


def test_a_kernelspec_of_another_interpreter_is_not_trusted(tiny_book):
    """Jupyter's search path offers a python3 that is a different program."""
    foreign = tiny_book.root / "foreign" / "kernels" / "python3"
    foreign.mkdir(parents=True)
    spec = {"argv": ["/bin/false"], "display_name": "Python 3", "language": "python"}
    (foreign / "kernel.json").write_text(json.dumps(spec))
    tiny_book.write({"01-first": notebook("import sys\nprint(sys.executable)")})
    result = tiny_book.run(environment={"JUPYTER_PATH": str(tiny_book.root / "foreign")})
    assert result.returncode == 0, result.stdout
    assert tiny_book.executed("01-first").cells[-1].outputs[0].text.strip() == sys.executable


def test_a_kernel_that_is_another_interpreter_is_refused():
    def answer(executable):
        said = {"executable": executable, "prefix": sys.prefix}
        return {name: {"status": "ok", "data": {"text/plain": repr(text)}} for name, text in said.items()}

    engine.check_interpreter(answer(sys.executable))
    with pytest.raises(engine.ChapterFailed, match="wrong kernel: its sys.executable is '/usr/bin/other'"):
        engine.check_interpreter(answer("/usr/bin/other"))
    with pytest.raises(engine.ChapterFailed, match="wrong kernel"):
        engine.check_interpreter({})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--only", "07"], "--only 07 matches no chapter; there are: 01-first"),
        (["--timeout", "0"], "take a number above 0"),
    ],
)
def test_what_cannot_be_run_is_said(tiny_book, arguments, message):
    tiny_book.write({"01-first": notebook("a = 1")})
    result = tiny_book.run(*arguments)
    assert result.returncode == 2 and message in result.stderr


GPU = """
from types import SimpleNamespace as n
version = n(cuda="13.0")
cuda = n(
    is_available=lambda: True,
    get_device_properties=lambda index: n(name="A GPU", major=12, minor=0),
)
"""


def test_on_a_gpu_chapters_run_one_at_a_time(tiny_book):
    """PyTorch's answers are made up; the order of the chapters and the device's place in the key are real."""
    (tiny_book.root / "shadow").mkdir()
    (tiny_book.root / "shadow" / "torch.py").write_text(GPU)
    shadow = {"PYTHONPATH": str(tiny_book.root / "shadow")}
    stamp = "import time\nprint(device, time.time())\ntime.sleep(1)\nprint(time.time())"
    tiny_book.write({"01-first": notebook(stamp), "02-second": notebook(stamp)})
    assert tiny_book.run("--device", "cuda", environment=shadow).returncode == 0
    assert tiny_book.manifest["last_run"]["device"] == {
        "kind": "cuda",
        "name": "A GPU",
        "capability": "12.0",
        "cuda": "13.0",
    }
    first, second = (tiny_book.executed(name).cells[-1].outputs for name in ("01-first", "02-second"))
    words = "".join(output.text for output in first).split()
    assert words[0] == "cuda"
    assert float(words[-1]) < float("".join(output.text for output in second).split()[1])

    refused = tiny_book.run("--device", "cuda", "--jobs", "2", environment=shadow)
    assert refused.returncode == 2 and "one at a time" in refused.stderr
    assert tiny_book.run("--device", "cpu", "--only", "01", environment=shadow).returncode == 0
    assert tiny_book.manifest["last_run"]["executed"] == ["01-first"]


def test_on_a_gpu_chapters_of_a_measured_run_may_run_together(tiny_book):
    (tiny_book.root / "shadow").mkdir()
    (tiny_book.root / "shadow" / "torch.py").write_text(GPU)
    environment = {"PYTHONPATH": str(tiny_book.root / "shadow"), "BOOK_RUN_ID": "measured"}
    skipped = "os.environ['BOOK_SKIP_EXPERIMENTS']"
    stamp = f"import os, time\nprint(time.time())\ntime.sleep(2)\nprint(time.time(), {skipped})"
    tiny_book.write({"01-first": notebook(stamp), "02-second": notebook(stamp)})
    asked = ("--device", "cuda", "--jobs", "2", "--force")
    assert tiny_book.run(*asked, environment=environment).returncode == 2
    run = tiny_book.root / "_build" / "runs" / "measured" / "run.json"
    run.parent.mkdir(parents=True)
    runs = Path(__file__).parents[2] / "data" / "runs"
    recorded = json.loads(next(runs.glob("*/*/run.json")).read_text())
    run.write_text(json.dumps(recorded | {"run_id": "measured", "chapters": {}, "experiments": {}}))
    assert tiny_book.run(*asked, environment=environment).returncode == 0
    first, second = (tiny_book.executed(name).cells[-1].outputs for name in ("01-first", "02-second"))
    first, second = ("".join(output.text for output in outputs).split() for outputs in (first, second))
    assert first[2] == second[2] == "all"
    assert max(float(first[0]), float(second[0])) < min(float(first[1]), float(second[1]))


def test_a_missing_gpu_is_said(tiny_book):
    (tiny_book.root / "shadow").mkdir()
    (tiny_book.root / "shadow" / "torch.py").write_text(GPU.replace("lambda: True", "lambda: False"))
    tiny_book.write({"01-first": notebook("a = 1")})
    result = tiny_book.run("--device", "cuda", environment={"PYTHONPATH": str(tiny_book.root / "shadow")})
    assert result.returncode == 2 and "sees no CUDA device" in result.stderr
