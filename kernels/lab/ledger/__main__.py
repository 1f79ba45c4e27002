"""Prints the ledger: `python -m kernels.lab.ledger`."""

from kernels.lab.ledger import build, counts

for row in (rows := build()):
    claim, finding = row.claim, row.finding
    article = f"{claim.chapter}  {claim.id:28} {claim.value:>10} {claim.unit:12}"
    print(f"{article} {finding.status:18} {finding.found}")
    if finding.reason:
        print(f"{'':32}{finding.reason}")
print(", ".join(f"{number} {status}" for status, number in counts(rows).items()))
