"""What T3 costs, measured and by arithmetic."""
