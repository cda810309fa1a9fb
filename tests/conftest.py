"""Settings of every test: a slow machine is no failure."""

from hypothesis import HealthCheck, settings

settings.register_profile("any_machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any_machine")
