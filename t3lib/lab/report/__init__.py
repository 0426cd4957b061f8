"""Turn run files into tables, figures, the page and README's headline table, without torch."""
