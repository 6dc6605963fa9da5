"""Descriptors are shared out so that neither logs nor clients starve."""

from __future__ import annotations

import resource

import pytest

from tidelog.runtime.descriptors import RESERVED, raise_limit, share


@pytest.mark.parametrize("limit", [16, 256, 1024, 20_000])
def test_the_shares_fit_the_limit(limit: int) -> None:
    shares = share(limit)
    assert shares.log_files >= 1 and shares.connections >= 3
    # S6: a connection that is sent parts of files has two.
    assert shares.log_files + 2 * shares.connections <= max(limit - RESERVED, 8)


def test_the_soft_limit_is_raised_to_the_hard_one() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 512), hard))
    try:
        limit = raise_limit()
        assert limit == resource.getrlimit(resource.RLIMIT_NOFILE)[0] >= 512
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
