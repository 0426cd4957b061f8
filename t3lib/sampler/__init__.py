"""The tempered sampler: p^(1/T) f in `generate`, and which base a head fits."""
