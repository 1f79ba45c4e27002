"""A shrunken step and the baseline's recording of it, built once for the module."""

import pytest
import torch

from kernels import decode_step
from kernels.decode_step import compare


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def baseline():
    return decode_step.build("baseline", batch=2, context=256, max_context=512, device="cpu")


@pytest.fixture(scope="module")
def recording(baseline):
    return compare.record(baseline)
