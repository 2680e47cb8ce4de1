"""The one error that ends building the environment."""


class EnvironmentFailure(Exception):
    """The environment cannot be built; the message says what to do."""
