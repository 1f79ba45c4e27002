"""Pages that are computed when the site is built. The runner calls every writer with (staged folder,
manifest).
"""

from kernels.lab.pages.ledger import write as write_ledger
from kernels.lab.pages.status import write as write_status
from kernels.lab.pages.waterfall import write_introduction

WRITERS = [write_status, write_ledger, write_introduction]
