"""The tempered sampler: p^(1/T) f in `generate`, which base a head fits, T3 in one call."""
