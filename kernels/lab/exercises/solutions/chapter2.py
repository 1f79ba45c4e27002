"""Reference solutions of chapter 2."""


def tile_bytes(block_h, block_t, stages):
    return 2 * 512 * (block_h + stages * block_t)


def blocks_per_sm(shared_bytes, registers, threads):
    if shared_bytes > 101_376:
        return 0
    warps = -(-threads // 32)
    registers_of_a_warp = -(-registers * 32 // 256) * 256
    shared_of_a_block = -(-shared_bytes // 128) * 128 + 1024
    return min(102_400 // shared_of_a_block, 65_536 // (warps * registers_of_a_warp), 48 // warps, 24)


def largest_block_t(block_h, limit):
    best, block_t = 0, 16
    while 1024 * (block_h + block_t) + 2 * block_h * block_t <= limit:
        best, block_t = block_t, 2 * block_t
    return best


def block_registers(row):
    return row["num_warps"] * (-(-row["registers"] * 32 // 256) * 256)


def is_legal(row):
    return (
        row["error"] is None
        and row["shared_bytes"] <= 101_376
        and row["registers"] <= 255
        and block_registers(row) <= 65_536
        and row["spill_bytes"] == 0
    )


def choose_tile(rows):
    def rank(row):
        reads = -(-64 // row["block_h"])
        threads = 32 * row["num_warps"]
        resident_warps = row["num_warps"] * blocks_per_sm(row["shared_bytes"], row["registers"], threads)
        return reads, -resident_warps, -row["block_t"], row["num_warps"]

    return min(filter(is_legal, rows), key=rank, default=None)
