"""What every other package uses: errors, names, settings, files, models, rows and prompts."""
