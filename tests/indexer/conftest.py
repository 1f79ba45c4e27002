"""Where a test of the indexer runs: interpreted on the CPU, and compiled on a GPU under `-m gpu`."""

import pytest


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request):
    return request.param
