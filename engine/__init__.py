"""The engine. Importing it loads no torch, but prepares for it."""

import os

# A thread of torch that waits for the others spins; where a browser or another program wants the same core, it then burns the
# time slice of the thread it waits for, and a pass takes up to forty times as long. So it sleeps after this many spins (some
# microseconds). Read by GNU OpenMP when torch is first imported.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")
