"""Turn run files into tables, figures, web pages and README's headline table, without torch."""
