"""The script for compute-sanitizer: its calls are right, interpreted, and it covers every kernel."""

import importlib
import os

from kernels.sparse_mla import IMPLS
from tests.gpu import sanitize
from tests.sparse_mla import cases


def test_every_kernel_has_a_call():
    names = [name for name, _ in (*sanitize.attention_calls("cuda"), *sanitize.indexer_calls("cuda"))]
    assert len(set(names)) == len(names)
    for impl in (*IMPLS, *cases.runnable_tiles()):
        assert any(name.startswith(f"sparse_mla {impl} ") for name in names)
    assert any("indexer" in name for name in names)


def test_it_runs_interpreted(capsys):
    assert sanitize.main(["--device", "cpu", "--only", "mma offset 3 caches 2"]) == 1
    assert sanitize.main(["--device", "cpu", "--only", "indexer short rows"]) == 2
    assert sanitize.main(["--device", "cpu", "--only", "nothing of that name"]) == 0
    assert "1 calls on cpu" in capsys.readouterr().out


def test_calls_that_do_not_end_have_to_be_named():
    names = [name for name, _ in sanitize.attention_calls("cuda")]
    for only, pairs in (("", False), ("staged-few", False), ("staged-few-pair", True)):
        asked = [name for name in names if sanitize.asked_for(name, only)]
        assert asked and any(sanitize.ENDLESS in name for name in asked) == pairs
    assert len([name for name in names if not sanitize.asked_for(name, "")]) == 10


def test_an_import_leaves_the_allocator_alone(monkeypatch):
    monkeypatch.delenv("PYTORCH_NO_CUDA_MEMORY_CACHING", raising=False)
    importlib.reload(sanitize)
    assert "PYTORCH_NO_CUDA_MEMORY_CACHING" not in os.environ
