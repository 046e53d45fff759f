"""A plugin of pytest: Hypothesis draws the same examples each time, makes none smaller, and leaves nothing on the disk."""

import hypothesis

hypothesis.settings.register_profile(
    "same examples",
    derandomize=True,
    database=None,
    deadline=None,
    phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate],
    suppress_health_check=list(hypothesis.HealthCheck),
)
hypothesis.settings.load_profile("same examples")
