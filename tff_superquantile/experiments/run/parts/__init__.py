"""The parts of which a run's config is composed."""
