"""What every room uses: errors, names, settings, files, models, and rows with their prompts and
batches.
"""
