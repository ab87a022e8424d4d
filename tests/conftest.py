"""Settings that every test shares."""

from __future__ import annotations

from hypothesis import settings

# The same examples on every run: a red test is a change in the code, never the luck of the draw. No deadline,
# because the first call into torch is slow and a busy machine is not a bug.
settings.register_profile("lightning_exposure", derandomize=True, deadline=None)
settings.load_profile("lightning_exposure")
