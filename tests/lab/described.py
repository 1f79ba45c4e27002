"""A device as run.json describes it, for records that tests make up."""

DEVICE = {
    "name": "NVIDIA H200",
    "uuid_sha256": "0123456789ab",
    "capability": "9.0",
    "sm_count": 132,
    "smem_optin_bytes": 232448,
    "l2_bytes": 62914560,
    "memory_bytes": 150000000000,
}
