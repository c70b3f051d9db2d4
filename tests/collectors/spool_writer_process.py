"""A process that writes samples to a spool and says which are acknowledged: ``SPOOL FIRST_NUMBER [BATCHES]``.

Prints the number of the last acknowledged sample after each sync. Seals now and then; without BATCHES it goes on
until it is killed.
"""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

from spool_samples import sample

from diode_collectors.spool.spool import SpoolWriter

BATCH = 7


def main() -> None:
    """Write until told otherwise."""
    number = int(sys.argv[2])
    batches = range(int(sys.argv[3])) if len(sys.argv) > 3 else itertools.count()
    writer = SpoolWriter(Path(sys.argv[1]), segment_bytes=20_000)
    for batch in batches:
        for _ in range(BATCH):
            writer.append(sample(number))
            number += 1
        writer.sync()
        print(number - 1, flush=True)  # noqa: T201 - how the test is told
        if batch % 5 == 0:
            writer.seal()
    writer.close()


if __name__ == "__main__":
    main()
