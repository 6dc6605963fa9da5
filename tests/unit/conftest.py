"""Hypothesis in these tests judges answers, never how long a machine takes for them."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile("answers", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("answers")
