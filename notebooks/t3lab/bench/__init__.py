"""The cost of T3, measured and computed by arithmetic."""
