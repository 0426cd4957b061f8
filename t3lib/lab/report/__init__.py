"""From run files to tables, figures, the page and the generated parts of README; no torch."""
