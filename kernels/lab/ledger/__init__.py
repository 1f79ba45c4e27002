"""The ledger: every figure of the campaign's articles beside what this book finds.

A claim is a row of `data/campaign.csv`. Its `check` names a function, registered with `@check`, that computes
a `Finding` from other claims, from `data/`, from the kernels' code, from a compilation for sm_120 or from a
recorded run. No status is typed anywhere.

`python -m kernels.lab.ledger` prints the table.
"""

from kernels.lab.ledger.build import Row, build, counts
from kernels.lab.ledger.claims import Claim, load_claims
from kernels.lab.ledger.findings import STATUSES, Finding

__all__ = ["STATUSES", "Claim", "Finding", "Row", "build", "counts", "load_claims"]
