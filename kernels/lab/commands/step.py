"""`python -m kernels.lab step`: one decode step's time, and the table of its kernels."""

HELP = "time one decode step of DeepSeek-V4-Flash and show where its time goes (on a CPU: count launches)"


def add_arguments(parser) -> None:
    parser.add_argument("--stage", default="split_k", help="baseline, mma, split_k, ... or all")
    parser.add_argument("--batch", type=int, default=1, help="concurrent requests")
    parser.add_argument("--context", type=int, default=8192, help="live tokens of each request")
    parser.add_argument(
        "--max-context", type=int, help="tokens that the engine is configured for; the context by default"
    )
    parser.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda"))
    parser.add_argument("--kernels", type=int, default=12, help="how many kernels to list")


def _on_gpu(arguments, stages) -> int:
    from kernels import decode_step
    from kernels.lab import profile
    from kernels.lab.experiments.decode_step import time_step

    shape = {"batch": arguments.batch, "context": arguments.context, "max_context": arguments.max_context}
    step = decode_step.build(stages[0], device="cuda", **shape)
    for stage in stages:
        step = step.at_stage(stage)
        timing = time_step(step)
        step.release()
        rows = profile.measured(step)
        print(
            f"{stage}: {timing.median_us / 1e3:,.3f} ms a step (p20 {timing.p20_us / 1e3:,.3f}, p80 "
            f"{timing.p80_us / 1e3:,.3f}), {step.tokens_per_s(timing.median_us):,.1f} tokens/s"
        )
        print(profile.text_table(rows, arguments.kernels) + "\n")
    return 0


def _on_cpu(stages) -> int:
    from kernels import decode_step
    from kernels.lab import profile
    from kernels.lab.launch_count import counted

    print("no GPU: a shrunken model is run, and launches are counted for the real model's 43 layers; no time")
    step = decode_step.build(stages[0], batch=1, context=256, max_context=512, device="cpu")
    for stage in stages:
        print(f"\n{stage}")
        print(profile.text_table(counted(step.at_stage(stage), decode_step.flash().ratios)))
    return 0


def run(arguments) -> int:
    from kernels import triton_mode

    device = triton_mode.choose(arguments.device)

    from kernels import decode_step

    if arguments.stage == "all":
        stages = list(decode_step.STAGES)
    else:
        stages = [decode_step.stage_named(arguments.stage).name]
    arguments.max_context = arguments.max_context or arguments.context
    decode_step.check(arguments.batch, arguments.context, arguments.max_context)
    return _on_gpu(arguments, stages) if device == "cuda" else _on_cpu(stages)
