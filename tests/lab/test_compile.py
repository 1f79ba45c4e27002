"""Compiling for GPUs that are not here: contents, failures, cache and bad input, on small kernels."""

import json
from pathlib import Path

import pytest

from kernels.lab import __main__ as shell
from kernels.lab import compile as lab
from kernels.lab.compile import binaries, pool, request

MODULE = "tests.lab.compile_kernels"
# At 64 the loop is kept as it is; at 32 ptxas makes four tiles one pass through the body.
TILE = {"block": 64, "num_warps": 4, "num_stages": 2}


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KERNELS_COMPILE_CACHE", str(tmp_path_factory.mktemp("compile-cache")))
        yield
    pool.stop()


@pytest.fixture(scope="module")
def results(cache):
    asked = [("dot", "sm_120"), ("dot", "sm_90"), ("simt", "sm_120"), ("broken", "sm_120")]
    compiled = lab.compile_many([dict(op=MODULE, impl=i, tile=TILE, target=t) for i, t in asked])
    return dict(zip(asked, compiled, strict=True))


def test_a_dot_is_tensor_instructions_in_the_main_loop(results):
    compiled = results["dot", "sm_120"]
    assert compiled.error is None
    loop = compiled.main_loop.counts
    assert loop.tensor_flops * TILE["num_warps"] == 2 * 64**3
    assert loop["tensor"] == loop.opcodes["HMMA"] > 0
    assert loop.total < compiled.counts.total


def test_multiply_and_sum_has_no_tensor_instruction(results):
    compiled = results["simt", "sm_120"]
    assert compiled.counts["tensor"] == 0
    assert compiled.main_loop.counts["fma"] >= 1


def test_resources_agree_with_the_files_kept_for_reading(results):
    compiled = results["dot", "sm_120"]
    assert ".target sm_120" in compiled.ptx and f".reqntid {compiled.max_threads}" in compiled.ptx
    assert compiled.max_threads == 128
    assert compiled.sass.count("HMMA.") == compiled.counts["tensor"]
    # Two stages of a and b, 64 x 64 bfloat16 each, at least one of them ready while the next is fetched.
    assert compiled.shared_bytes >= 2 * 64 * 64 * 2
    assert 16 <= compiled.registers <= 255
    assert compiled.spill_bytes == compiled.stack_bytes == 0


def test_a_compiler_failure_is_a_result_with_a_reason(results):
    compiled = results["broken", "sm_120"]
    assert not compiled.ok and "power of 2" in compiled.error
    assert compiled.shared_bytes is None and lab.legal(compiled)[0].startswith("does not compile")
    json.dumps(compiled.as_json())


def test_another_target_gives_its_own_code(results):
    assert ".target sm_90" in results["dot", "sm_90"].ptx
    assert results["dot", "sm_90"].key != results["dot", "sm_120"].key
    assert results["dot", "sm_90"].main_loop.counts.opcodes["HGMMA"] == 4


def test_the_second_time_comes_from_the_cache_without_a_worker(results, monkeypatch):
    monkeypatch.setattr(pool, "ask_all", lambda *_: pytest.fail("a worker was asked"))
    again = lab.compile_kernel(MODULE, "dot", TILE)
    assert again.from_cache and again == results["dot", "sm_120"]
    assert again.as_json() == results["dot", "sm_120"].as_json()


def test_a_changed_source_is_compiled_again(results, monkeypatch):
    asked = []
    monkeypatch.setattr(lab, "source_hash", lambda module: "another source")
    monkeypatch.setattr(
        pool, "ask_all", lambda messages, sources: asked.extend(messages) or [{"error": "E"}] * len(messages)
    )
    assert lab.compile_kernel(MODULE, "dot", TILE).error == "E"
    assert len(asked) == 1


def test_a_compiler_that_dies_is_a_result_and_the_next_request_works(results):
    crashed = lab.compile_kernel(MODULE, "dot", TILE, crash=True)
    assert "status 7" in crashed.error
    assert lab.compile_kernel(MODULE, "simt", TILE, target="sm_90").ok


def test_an_unknown_target_lists_the_known_ones():
    with pytest.raises(ValueError, match="target: got 'sm_119', accepted are .*sm_120"):
        lab.compile_kernel(MODULE, "dot", TILE, target="sm_119")


@pytest.mark.parametrize(
    ("name", "value"),
    [("block_h", 24), ("block_t", 0), ("num_warps", 3), ("num_stages", 0), ("producer_warps", 3)],
)
def test_a_tile_that_cannot_be_is_refused(name, value):
    with pytest.raises(ValueError, match=f"tile: {name}={value}"):
        request.make_request(MODULE, "dot", {name: value})


def test_a_block_has_at_most_32_warps_producers_included():
    tile = {"num_warps": 32, "producer_warps": 0}
    assert request.make_request(MODULE, "dot", tile).tile == tile
    with pytest.raises(ValueError, match=r"tile: 32 \+ 4 warps"):
        request.make_request(MODULE, "dot", tile | {"producer_warps": 4})


def test_an_unknown_operator_is_named():
    with pytest.raises(ValueError, match="op: no module"):
        lab.compile_kernel("nothing_here.signatures", "dot", TILE)


def test_spills_are_read_from_the_log_of_ptxas():
    log = "16 bytes spill stores, 20 bytes spill loads\n8 bytes spill stores, 4 bytes spill loads"
    assert binaries.spills(log) == {"spill_store_bytes": 24, "spill_load_bytes": 24}
    assert binaries.spills("Used 80 registers") is None


def test_the_command_prints_json(results, capsys):
    options = ["--num-warps", "4", "--num-stages", "2", "--json"]
    assert shell.main(["compile", "--op", MODULE, "--impl", "broken", *options]) == 1
    assert json.loads(capsys.readouterr().out)[0]["error"]
    assert shell.main(["compile", "--target", "nope"]) == 2
    assert "accepted are" in capsys.readouterr().err
    assert shell.main(["compile", "--op", "nope", "--impl", "mma"]) == 2
    assert "op: got 'nope'" in capsys.readouterr().err


def test_reading_many_kernels_at_once_gives_what_reading_one_gives(results, tmp_path):
    """The raw, joined disassembly against `nvdisasm -c` of each cubin, by instructions and loops."""
    from kernels.lab.compile import disassemble, sass

    requests = [request.make_request(MODULE, impl, TILE, "sm_120") for impl in ("dot", "simt")]
    messages = [lab._message(r) | {"tools": "read again"} for r in requests]
    sources = {MODULE: request.source_hash(MODULE)}
    answers = [reply["result"] for reply in pool.ask_all(messages, sources)]
    joined = disassemble.disassemble_all([a["cubin"] for a in answers], 120)
    for answer, text in zip(answers, joined, strict=True):
        path = tmp_path / "one.cubin"
        path.write_bytes(answer["cubin"])
        alone, labels = sass.parse(binaries.disassemble(path))
        together, own_labels = sass.parse(text)
        assert [(i.address, i.guard, i.mnemonic) for i in together] == [
            (i.address, i.guard, i.mnemonic) for i in alone
        ]
        assert sass.loops(together, own_labels) == sass.loops(alone, labels) != []


def test_requests_for_the_same_machine_code_share_it(results):
    again = lab.compile_kernel(MODULE, "dot", TILE, crash=False)
    first = results["dot", "sm_120"]
    assert again.key == first.key and again.options == {"crash": False} != first.options


# From here on, tests end the pool's processes


def test_an_interpreted_kernel_says_what_to_do(monkeypatch):
    monkeypatch.setitem(pool._ENVIRONMENT, "TRITON_INTERPRET", "1")
    pool.stop()
    try:
        with pytest.raises(lab.InterpretedKernelError, match="TRITON_INTERPRET=0"):
            lab.compile_kernel(MODULE, "dot", TILE | {"block": 32})
    finally:
        pool.stop()


def test_code_that_does_not_depend_on_the_pipeline_is_made_once(results):
    """`simt` has nothing to pipeline, `dot` has: equal code is shared, other code is not mixed up with it."""
    asked = [(impl, stages) for impl in ("simt", "dot") for stages in (1, 3)]
    tools = "made anew"

    def ask(several):
        messages = [
            lab._message(request.make_request(MODULE, impl, TILE | {"num_stages": stages}, "sm_120"))
            for impl, stages in several
        ]
        replies = pool.ask_all([message | {"tools": tools} for message in messages], {MODULE: tools})
        return [reply["result"] for reply in replies]

    found = dict(zip(asked, ask(asked), strict=True))
    made = list(Path(pool._shared.name).iterdir())
    assert found["simt", 1]["cubin"] == found["simt", 3]["cubin"]
    assert found["simt", 1]["key"] != found["simt", 3]["key"]
    assert found["dot", 1]["cubin"] != found["dot", 3]["cubin"]
    assert found["dot", 1]["resources"]["shared_bytes"] < found["dot", 3]["resources"]["shared_bytes"]
    # Three codes, each with its resources
    assert len(made) == 6
    pool.stop()
    [alone] = ask([("simt", 3)])
    for name in ("ptx", "cubin"):
        assert alone[name] == found["simt", 3][name]
    same = {k: v for k, v in alone["resources"].items() if k != "seconds"}
    assert same == {k: v for k, v in found["simt", 3]["resources"].items() if k != "seconds"}


def test_processes_end_when_a_source_has_changed_and_not_when_another_one_is_asked_for(monkeypatch):
    asked = []

    class Worker:
        def ask(self, request):
            return {"worker": self}

        def let_go(self):
            asked.append("let go")

        def stop(self):
            asked.append("stopped")

    pool.stop()
    monkeypatch.setattr(pool, "_Worker", Worker)
    first = pool.ask_all([{}], {"a": "1"})
    assert pool.ask_all([{}], {"a": "1", "b": "1"}) == pool.ask_all([{}], {"b": "1"}) == first
    assert asked == []
    assert pool.ask_all([{}], {"b": "2"}) != first
    assert asked == ["let go", "stopped"]
    pool.stop()
