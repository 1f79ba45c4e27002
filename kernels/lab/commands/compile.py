"""`python -m kernels.lab compile`: what the compiler makes of the kernels, without a GPU."""

import json

HELP = "compile kernels for a named GPU: shared memory, registers, spills, instructions"


def add_arguments(parser) -> None:
    parser.add_argument("--target", default="sm_120", help="compute capability, such as sm_120 or sm_90")
    parser.add_argument(
        "--op", help="one kernel: sparse_mla or indexer (without: every configuration of the planners)"
    )
    parser.add_argument("--impl", help="one kernel: its rung, such as simt or mma")
    parser.add_argument("--block-h", type=int)
    parser.add_argument("--block-t", type=int)
    parser.add_argument("--num-warps", type=int)
    parser.add_argument("--num-stages", type=int)
    parser.add_argument("--producer-warps", type=int, help="of rung staged: warps that only fetch")
    parser.add_argument(
        "--option", action="append", default=[], metavar="NAME=VALUE", help="of the kernel's signature"
    )
    parser.add_argument("--json", action="store_true", help="print a JSON list")
    parser.add_argument("--sass", action="store_true", help="print the disassembly of the one kernel")
    parser.add_argument("--ptx", action="store_true", help="print the PTX of the one kernel")


def _requests(arguments) -> list:
    from kernels.lab.compile import make_request
    from kernels.lab.compile.plans import default_tile, every_configuration

    names = ("block_h", "block_t", "num_warps", "num_stages", "producer_warps")
    sizes = {name: getattr(arguments, name) for name in names}
    given = {name: value for name, value in sizes.items() if value is not None}
    if not arguments.op:
        if arguments.impl or given or arguments.option or arguments.sass or arguments.ptx:
            raise ValueError("op: missing; --impl, tile sizes, --option, --sass and --ptx need --op")
        return every_configuration(arguments.target)
    if not arguments.impl:
        raise ValueError(f"impl: missing; name the rung of {arguments.op} to compile, such as --impl mma")
    options = {}
    for text in arguments.option:
        name, equals, value = text.partition("=")
        if not equals:
            raise ValueError(f"option: got {text!r}, accepted is NAME=VALUE")
        try:
            options[name] = json.loads(value)
        except ValueError:
            options[name] = value
    tile = default_tile(arguments.op, arguments.impl, arguments.target) | given
    return [make_request(arguments.op, arguments.impl, tile, arguments.target, **options)]


def _table(results) -> str:
    from kernels.lab.compile import legal

    lines = [
        f"{'op':10} {'impl':9} {'tile':34} {'shared':>7} {'regs':>4} {'spill':>5} {'insts':>6} "
        f"{'main loop: tensor  fma  conv  int shared global':48} verdict"
    ]
    for r in results:
        tile = " ".join(
            f"{k.replace('block_', '').replace('num_', '')}={v}" for k, v in (r.tile | r.options).items()
        )
        if r.error:
            lines.append(f"{r.op:10} {r.impl:9} {tile:34} does not compile: {r.error}")
            continue
        c = (r.main_loop.counts if r.main_loop else r.counts).classes
        loop = (
            f"{c['tensor']:17} {c['fma']:4} {c['conversion']:5} {c['integer']:4} "
            f"{c['shared_load'] + c['shared_store']:6} {c['global_load'] + c['async_copy']:6}"
        )
        verdict = "; ".join(legal(r, r.target)) or "legal"
        lines.append(
            f"{r.op:10} {r.impl:9} {tile:34} {r.shared_bytes:7,} {r.registers:4} {r.spill_bytes:5} "
            f"{r.counts.total:6} {loop:48} {verdict}"
        )
    return "\n".join(lines)


def run(arguments) -> int:
    from kernels.lab.compile import compile_many

    results = compile_many(_requests(arguments))
    if arguments.sass or arguments.ptx:
        print(results[0].error or (results[0].sass if arguments.sass else results[0].ptx))
    elif arguments.json:
        print(json.dumps([r.as_json() for r in results], indent=1))
    else:
        print(_table(results))
    return 1 if any(r.error for r in results) else 0
