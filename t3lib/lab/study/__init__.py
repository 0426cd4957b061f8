"""One forget split opened; a method run on it; ablations; the search for settings."""
