"""The tempered sampler: p^(1/T) f inside `generate`, whose head it is, and all of T3 in one
call.
"""
