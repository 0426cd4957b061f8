"""A plugin of pytest for `make test`: nbval waits as long for output as `t3 reproduce` does.

nbval's own limit is five seconds, which a busy machine exceeds, and no option changes it.
"""

from typing import Any

from t3lab.grid.runner import OUTPUT_SECONDS


def pytest_collection_modifyitems(items: list[Any]) -> None:
    """Set the limit of every cell that nbval runs."""
    for item in items:
        item.output_timeout = OUTPUT_SECONDS
