"""The runner behind book/run.py: chapters through papermill, a manifest of what ran, and the site."""
