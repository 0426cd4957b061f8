"""A person's own model: rows from their files, T and w from evidence, and the verdict."""
