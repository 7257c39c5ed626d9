"""How the tests run: the same examples for everybody, unless somebody asks for a long search."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# `ci` is the default, so that a run at home is the run of CI: the same examples every time, and no deadline,
# because shared machines are slow at times.  `pytest --hypothesis-profile=long` searches at random and for
# long.
settings.register_profile(
    "ci", deadline=None, derandomize=True, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile(
    "long", deadline=None, max_examples=2000, print_blob=True, suppress_health_check=list(HealthCheck)
)
settings.load_profile("ci")
