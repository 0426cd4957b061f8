"""All that regenerates the paper and serves the command line; nothing of the method imports it."""
