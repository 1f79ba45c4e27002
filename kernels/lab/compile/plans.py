"""Every configuration that the operators' planners can choose for a target, as compile requests."""

import importlib
from dataclasses import asdict

from kernels.lab.compile.request import Request, make_request
from kernels.lab.devices import device_of, devices, target_of

OPERATORS = ("sparse_mla", "indexer")


def planner(op: str):
    """The operator's `plan` module.

    Raises:
        ValueError: no such operator.
    """
    if op not in OPERATORS:
        raise ValueError(f"op: got {op!r}, accepted are {OPERATORS}, or a dotted module name with --impl")
    return importlib.import_module(f"kernels.{op}.plan")


def _plans(op: str, target: str) -> list[tuple[str, object]]:
    """(impl, tile) of every plan for a target, in the planner's order."""
    module, facts = planner(op), target_of(target)
    tile_class = "sm120" if facts.capability[0] == 12 else "native"
    if op == "indexer" and not hasattr(module, "every_plan"):
        kernels = importlib.import_module(f"kernels.{op}.signatures").KERNELS
        name = module.device_class(facts.capability)
        logits, topk = module.LOGITS_TILES[name], module.TOPK_TILES[name]
        return [(kernel, topk if kernel.startswith("radix") else logits) for kernel in kernels]
    sms = next((device_of(d)["sm_count"] for d in devices() if device_of(d).target == facts), 132)
    device = module.Device(sms, facts.capability, facts.shared_optin)
    return [(plan.impl, plan.tile) for plan in module.every_plan(device, tile_class)]


# Options of the operators' signatures that change the machine code: one and two caches, lengths, sinks, odd
# addresses.
_ATTENTION_VARIANTS = [
    {},
    {"has_length": True, "extra_topk": 512},
    {"extra_topk": 64, "extra_page_size": 2, "has_sink": False},
    {"heads": 16, "has_length": True, "topk": 2048},
]
_COMBINE_VARIANTS = [
    {"num_splits": n, "scratch_dtype": d} for d in ("bfloat16", "float32") for n in (2, 6, 8, 64)
]


def _combine_tile() -> dict:
    """The combine's fixed tile, with the warps that the launcher gives it."""
    warps = importlib.import_module("kernels.sparse_mla.launch").COMBINE_WARPS
    return {"block_h": 1, "block_t": 1, "num_warps": warps, "num_stages": 1}


def _variants(op: str, thorough: bool) -> list[dict]:
    if op != "sparse_mla":
        return [{}]
    return _ATTENTION_VARIANTS if thorough else _ATTENTION_VARIANTS[:2]


def every_configuration(target: str = "sm_120", operators=OPERATORS, thorough: bool = False) -> list[Request]:
    """One request for every kernel that the planners can launch on a target.

    Args:
        operators: of these operators.
        thorough: also the specialisations that differ only in page size, sink and head count.

    Raises:
        ModuleNotFoundError: an operator has no `plan` or no `signatures` module.
    """
    requests = []
    for op in operators:
        importlib.import_module(f"kernels.{op}.signatures")
        for impl, tile in _plans(op, target):
            requests += [make_request(op, impl, tile, target, **o) for o in _variants(op, thorough)]
        if op == "sparse_mla":
            # The combine kernel has no tile of its own: its block follows from the number of splits.
            chosen = _COMBINE_VARIANTS if thorough else [_COMBINE_VARIANTS[i] for i in (2, 3, 7)]
            requests += [make_request(op, "combine", _combine_tile(), target, **o) for o in chosen]
    return requests


def default_tile(op: str, impl: str, target: str = "sm_120") -> dict:
    """The tile of the first plan with this rung: the command line's defaults."""
    if "." in op:
        return {}
    plans = _plans(op, target)
    for name, tile in plans:
        if name == impl:
            return asdict(tile)
    if op == "sparse_mla" and impl == "combine":
        return _combine_tile()
    raise ValueError(f"impl: got {impl!r}, accepted for {op} are {sorted({name for name, _ in plans})}")
