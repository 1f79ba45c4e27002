"""Fixtures of the runner's tests."""

import pytest

from tests.book.tiny import TinyBook


@pytest.fixture
def tiny_book(tmp_path) -> TinyBook:
    return TinyBook(tmp_path)
