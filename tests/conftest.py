"""Settings that every test shares."""

from __future__ import annotations

import os
import tempfile

from hypothesis import settings

# The same examples on every run: a red test is a change in the code, never the luck of the draw. No deadline,
# because the first call into torch is slow and a busy machine is not a bug.
settings.register_profile("lightning_exposure", derandomize=True, deadline=None)
settings.load_profile("lightning_exposure")

# The models here are tiny: a second thread only waits for the first, and far longer on a busy machine. Set before
# PyTorch is imported, and inherited by the processes that tests start.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# The key of masked names: tests make one of their own and leave none in the home of whoever runs them.
os.environ.setdefault("LIGHTNING_EXPOSURE_HOME", tempfile.mkdtemp(prefix="lightning-exposure-tests-"))
